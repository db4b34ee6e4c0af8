-- lease_release: gives the lease up. The version stays, so that a watch of it goes on.
-- KEYS[1] lease
-- KEYS[2] log
-- ARGV[1] token
-- ARGV[2] version    '' (the holder, its warden), else the exact version that must be stored (proof of death)
-- ARGV[3] reason
-- ARGV[4] successor  preferred router ID, may be ''
-- Replies
--   OK                       released, now or by this token before; *released* is in the log at top + 1
--   LOST state epoch owner   another token or version

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
redis.call('HDEL', KEYS[1], '-')

local lease = hash(KEYS[1])
local mine = lease.token == ARGV[1] and (ARGV[2] == '' or ARGV[2] == lease.token .. ':' .. lease.seq)
if mine and lease.state == 'released' then
  return {'OK'}
end
if not mine or lease.state ~= 'held' then
  return {'LOST', lease.state or '', lease.epoch or '0', lease.owner or ''}
end
redis.call('HSET', KEYS[1], 'state', 'released', 'reason', ARGV[3], 'successor', ARGV[4],
  'released_ms', text(now_ms()))
local epoch, n = log_top(KEYS[2])
local released = whole(lease.epoch, 4503599627370496)
if epoch < released then
  epoch, n = released, 0
end
local body = cmsgpack.pack({
  owner = lease.owner, reason = ARGV[3], successor = ARGV[4], at_ms = now_ms(),
})
redis.call('XADD', KEYS[2], 'MAXLEN', '~', '10000', text(epoch) .. '-' .. text(n + 1),
  'kind', 'released', 'body', body)
return {'OK'}
