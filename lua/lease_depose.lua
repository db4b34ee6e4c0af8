-- lease_depose: an operator ends a tenure. Others still watch T: the record is released, but not for sure.
-- KEYS[1] lease
-- KEYS[2] log
-- ARGV[1] expected   version `token:seq` that must be stored
-- ARGV[2] reason
-- Replies
--   OK         *released* is in the log if somebody held it; `replicas` is what is in step now, also if that
--              is less: the only script that lowers it. `deposed` = 1 until the next owner
--   CHANGED    another version, or a marker, or nothing is stored

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

local lease = hash(KEYS[1])
if not lease.state or lease.state == 'vacant' or ARGV[1] ~= lease.token .. ':' .. lease.seq then
  return {'CHANGED'}
end
redis.call('HSET', KEYS[1], 'state', 'released', 'sure', '0', 'inc', incarnation(), 'reason', ARGV[2],
  'successor', '', 'replicas', text(replicas_online()), 'deposed', '1')
if lease.state == 'held' then
  redis.call('HSET', KEYS[1], 'released_ms', text(now_ms()))
end
if lease.state == 'held' then
  local epoch, n = log_top(KEYS[2])
  local deposed = whole(lease.epoch, 4503599627370496)
  if epoch < deposed then
    epoch, n = deposed, 0
  end
  local body = cmsgpack.pack({owner = lease.owner, reason = ARGV[2], successor = '', at_ms = now_ms()})
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', '10000', text(epoch) .. '-' .. text(n + 1),
    'kind', 'released', 'body', body)
end
return {'OK'}
