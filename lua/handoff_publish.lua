-- handoff_publish: the owner's whole document, under its token and epoch. (epoch, seq) never goes back.
-- KEYS[1] lease
-- KEYS[2] handoff
-- KEYS[3] log
-- ARGV[1] token
-- ARGV[2] epoch
-- ARGV[3] seq
-- ARGV[4] upto             newest log id that the owner knows of; older entries are trimmed. Stored is the
--                          newest one of its epoch that there is
-- ARGV[5] schema_version
-- ARGV[6] crc32            of the document, unsigned decimal
-- ARGV[7] document         JSON text
-- Replies
--   OK id                    id of its own log entry, which carries only (seq, upto)
--   LOST state epoch owner   the token does not hold the lease
--   OLD epoch                the stored document or log is newer; a higher epoch is a floor

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

-- First write: HDEL frees, so it is allowed at maxmemory, and the later writes of a script that has
-- written are allowed too. On a replica it fails here, before anything is decided from old data.
redis.call('HDEL', KEYS[2], '-')

local lease = hash(KEYS[1])
if lease.state ~= 'held' or lease.token ~= ARGV[1] or lease.epoch ~= ARGV[2] then
  return {'LOST', lease.state or '', lease.epoch or '0', lease.owner or ''}
end

local epoch, seq = tonumber(ARGV[2]), tonumber(ARGV[3])
local stored = redis.call('HMGET', KEYS[2], 'epoch', 'seq')
local most = 4503599627370496
local stored_epoch, stored_seq = whole(stored[1], most), whole(stored[2], 2 * most)
local log_epoch, log_n = log_top(KEYS[3])
local newest = math.max(stored_epoch, log_epoch)
if newest > epoch or (stored_epoch == epoch and stored_seq >= seq) then
  return {'OLD', text(newest)}
end
-- Above the log's end and above `upto`: after a loss of the log a reader's position stays behind us.
local n = 0
if log_epoch == epoch then
  n = log_n
end
local told_epoch, told_n = string.match(ARGV[4], '^(%d+)-(%d+)$')
if tonumber(told_epoch) == epoch then
  n = math.max(n, tonumber(told_n))
end
-- An entry that the owner heard nothing of is in the document too: it was composed before.
redis.call('HSET', KEYS[2], 'epoch', ARGV[2], 'seq', ARGV[3], 'upto', ARGV[2] .. '-' .. text(n),
  'at_ms', text(now_ms()), 'schema_version', ARGV[5], 'document', ARGV[7], 'crc32', ARGV[6], 'inc', incarnation())
local id = ARGV[2] .. '-' .. text(n + 1)
redis.call('XADD', KEYS[3], 'MAXLEN', '~', '10000', id, 'kind', 'snapshot',
  'body', cmsgpack.pack({seq = seq, upto = ARGV[4]}))
redis.call('XTRIM', KEYS[3], 'MINID', ARGV[4])
return {'OK', id}
