-- lease_claim: plants the vacant marker where nothing is stored; everyone then watches that marker.
-- KEYS[1] lease
-- KEYS[2] epoch
-- ARGV[1] nonce      the marker's token, fresh at every attempt
-- ARGV[2] floor      raises the epoch key (not the marker's epoch); ignored above 2^52
-- ARGV[3] ttl_ms     how long its planter watches
-- Replies
--   OK         the marker is planted
--   EXISTS     a record or another marker is there already (a marker still raises the epoch key)

-- Read inside the script: an answer must not mix two lives of a server.
local function incarnation()
  local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
  local replid = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') or ''
  return run_id .. '/' .. replid
end

-- What no router wrote counts as 0, as if it had been deleted: another type, no number, one out of range.
local function whole(value, most)
  local number = type(value) == 'string' and string.find(value, '^%d+$') and tonumber(value) or 0
  return number <= most and number or 0
end

-- tostring() would give 4.5e+15 for large numbers.
local function text(number)
  return string.format('%.0f', number)
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- First write: HDEL frees, so it is allowed at maxmemory, and the later writes of a script that has
-- written are allowed too. On a replica it fails here, before anything is decided from old data.
redis.call('HDEL', KEYS[1], '-')

local state = redis.call('HGET', KEYS[1], 'state')
if state and state ~= 'vacant' then
  return {'EXISTS'}
end
local floor = tonumber(ARGV[2])
local most = 4503599627370496
if floor <= most and floor > whole(redis.pcall('GET', KEYS[2]), most) then
  redis.call('SET', KEYS[2], text(floor))
end
if state then
  return {'EXISTS'}
end
redis.call('HSET', KEYS[1], 'state', 'vacant', 'token', ARGV[1], 'seq', '0', 'epoch', '0', 'ttl_ms', ARGV[3],
  'inc', incarnation(), 'sure', '0', 'replicas', '0', 'acquired_ms', text(now_ms()))
return {'OK'}
