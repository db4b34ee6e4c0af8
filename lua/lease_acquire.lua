-- lease_acquire: takes the lease by compare-and-set on the version and the incarnation that were watched.
-- KEYS[1] lease
-- KEYS[2] epoch
-- KEYS[3] handoff
-- KEYS[4] log
-- KEYS[5] claims     deleted
-- ARGV[1] token      128 bits, new for every acquisition
-- ARGV[2] expected   version `token:seq` of the record that was watched
-- ARGV[3] inc        incarnation under which it was watched
-- ARGV[4] floor      highest epoch that the candidate knows of
-- ARGV[5] ttl_ms
-- ARGV[6] replicas   most replicas that the candidate has seen; the stored count is only raised, also by
--                     what is in step now
-- ARGV[7..] field value ...   what the owner tells about itself: owner, url, host, pid ...
-- Replies
--   OK epoch life replicas      taken; `<epoch>-1` is in the log
--   AGAIN epoch life replicas   this token held it already: nothing changed
--   HELD owner epoch            another version than expected
--   NEWSERVER inc               another incarnation than watched
--   NONE                        nothing is stored: plant a marker
--   BADFLOOR                    the floor, or the epoch to be granted, is above 2^52

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

-- The newest id ever given, also when the entries themselves are trimmed away.
local function log_top(key)
  if redis.call('EXISTS', key) == 0 then
    return 0, 0
  end
  local info = redis.call('XINFO', 'STREAM', key)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then
      local epoch, n = string.match(info[i + 1], '^(%d+)-(%d+)$')
      return tonumber(epoch), tonumber(n)
    end
  end
  return 0, 0
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

local most = 4503599627370496
local token, floor = ARGV[1], tonumber(ARGV[4])
if floor > most then
  return {'BADFLOOR'}
end
local lease = hash(KEYS[1])
if not lease.state then
  return {'NONE'}
end
if lease.state == 'held' and lease.token == token then
  -- The same value again, so that WAIT on this connection, maybe a new one, waits for the first write too.
  redis.call('HSET', KEYS[1], 'token', token)
  return {'AGAIN', lease.epoch, lease.life, lease.replicas or '0'}
end
local inc = incarnation()
if ARGV[3] ~= inc then
  return {'NEWSERVER', inc}
end
-- A late copy of an acquire whose token was released must not take again under the same token.
if lease.token == token or ARGV[2] ~= lease.token .. ':' .. lease.seq then
  return {'HELD', lease.owner or '', lease.epoch}
end

-- Redis time is only a floor: it helps when every other memory of the epoch is gone.
local now = now_ms()
local log_epoch, log_n = log_top(KEYS[4])
local epoch = math.max(
  whole(redis.pcall('GET', KEYS[2]), most),
  whole(lease.epoch, most),
  log_epoch,
  whole(redis.pcall('HGET', KEYS[3], 'epoch'), most),
  floor,
  math.floor(now / 1000)
) + 1
if epoch > most then
  return {'BADFLOOR'}
end
local life = inc .. '/' .. token .. ':0'
local replicas = math.max(tonumber(ARGV[6]), whole(lease.replicas, 10000), replicas_online())
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'state', 'held', 'token', token, 'seq', '0', 'epoch', text(epoch),
  'ttl_ms', ARGV[5], 'inc', inc, 'life', life, 'sure', '1', 'replicas', text(replicas),
  'acquired_ms', text(now), 'renewed_ms', text(now), unpack(ARGV, 7))
if lease.state == 'released' then
  -- Who did not see the release, or starts later, still learns why it came to this owner.
  redis.call('HSET', KEYS[1], 'prior_epoch', lease.epoch, 'prior_reason', lease.reason or '',
    'prior_owner', lease.owner or '', 'prior_released_ms', lease.released_ms or '0')
end
redis.call('SET', KEYS[2], text(epoch))
redis.call('DEL', KEYS[5])
-- `after`: the id that the log ended with, so that a reader can tell a hole from a new owner.
local told = hash(KEYS[1])
local body = cmsgpack.pack({
  owner = told.owner, url = told.url, at_ms = now, after = text(log_epoch) .. '-' .. text(log_n),
})
redis.call('XADD', KEYS[4], 'MAXLEN', '~', '10000', text(epoch) .. '-1', 'kind', 'acquired', 'body', body)
return {'OK', text(epoch), life, text(replicas)}
