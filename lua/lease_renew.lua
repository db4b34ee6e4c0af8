-- lease_renew: the holder's heartbeat; puts a record back that was lost or went back in time.
-- KEYS[1] lease
-- KEYS[2] epoch
-- KEYS[3] claims
-- ARGV[1] token
-- ARGV[2] epoch
-- ARGV[3] seq        higher at every attempt, also when an attempt is repeated
-- ARGV[4] life       of the last reply confirmed before the deadline
-- ARGV[5] ttl_ms
-- ARGV[6] replicas   most replicas seen; the stored count is only raised, also by what is in step now
-- ARGV[7..] field value ...   written only with a reinstatement
-- Replies
--   OK life replicas router claim ...   with pending claims
--   REINSTATED life replicas            the record is ours again: publish a snapshot at once
--   STALE                               a seq not above the stored one: nothing written, no answer
--   LOST state epoch owner              final for the token

-- Not unpack(): its limit is some thousand values.
local function joined(reply, more)
  for _, word in ipairs(more) do
    reply[#reply + 1] = word
  end
  return reply
end

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

local function hash(key)
  local flat, fields = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do
    fields[flat[i]] = flat[i + 1]
  end
  return fields
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Replicas that are in step: one that still loads, or a backup that reads along once, confirms nothing.
local function replicas_online()
  local count = 0
  for offset in string.gmatch(redis.call('INFO', 'replication'), 'state=online,offset=(%d+)') do
    if offset ~= '0' then
      count = count + 1
    end
  end
  return count
end

-- First write: HDEL frees, so it is allowed at maxmemory, and the later writes of a script that has
-- written are allowed too. On a replica it fails here, before anything is decided from old data.
redis.call('HDEL', KEYS[1], '-')

local token, epoch, seq = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local lease = hash(KEYS[1])
local most = 4503599627370496
local stored_epoch = whole(lease.epoch, most)
local replicas = text(math.max(tonumber(ARGV[6]), whole(lease.replicas, 10000), replicas_online()))

if lease.state == 'held' and lease.token == token and stored_epoch == epoch then
  if seq <= whole(lease.seq, 2 * most) then
    return {'STALE'}
  end
  local inc, life, sure = incarnation(), lease.life, '0'
  if lease.inc ~= inc then
    life = inc .. '/' .. token .. ':' .. ARGV[3]
  elseif ARGV[4] == life then
    sure = '1'
  end
  redis.call('HSET', KEYS[1], 'seq', ARGV[3], 'inc', inc, 'life', life, 'sure', sure, 'ttl_ms', ARGV[5],
    'replicas', replicas, 'renewed_ms', text(now_ms()))
  local claims = redis.pcall('HGETALL', KEYS[3])
  return joined({'OK', life, replicas}, claims.err and {} or claims)
end

-- A released record of our own epoch is not revived: it falls through to LOST.
if not lease.state or lease.state == 'vacant' or stored_epoch < epoch then
  local inc, now = incarnation(), text(now_ms())
  local life = inc .. '/' .. token .. ':' .. ARGV[3]
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'state', 'held', 'token', token, 'seq', ARGV[3], 'epoch', ARGV[2],
    'ttl_ms', ARGV[5], 'inc', inc, 'life', life, 'sure', '0', 'replicas', replicas,
    'acquired_ms', now, 'renewed_ms', now, unpack(ARGV, 7))
  if epoch > whole(redis.pcall('GET', KEYS[2]), most) then
    redis.call('SET', KEYS[2], ARGV[2])
  end
  return {'REINSTATED', life, replicas}
end
return {'LOST', lease.state, text(stored_epoch), lease.owner or ''}
