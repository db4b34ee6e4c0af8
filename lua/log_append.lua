-- log_append: one entry of the owner's log, under its token and epoch.
-- KEYS[1] lease
-- KEYS[2] log
-- ARGV[1] token
-- ARGV[2] epoch
-- ARGV[3] n          the id is `<epoch>-<n>`; acquire wrote n = 1
-- ARGV[4] kind
-- ARGV[5] body       msgpack
-- Replies
--   OK id
--   LOST state epoch owner   the token does not hold the lease
--   TOP id                   refused: the newest id. Of a higher epoch: a floor. Of this one: read it back,
--                            equal body = done, else go on at n = top + 1 with a snapshot

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
if lease.state ~= 'held' or lease.token ~= ARGV[1] or lease.epoch ~= ARGV[2] then
  return {'LOST', lease.state or '', lease.epoch or '0', lease.owner or ''}
end

local epoch, n = log_top(KEYS[2])
local mine, next_n = tonumber(ARGV[2]), tonumber(ARGV[3])
if mine < epoch or (mine == epoch and next_n <= n) then
  -- The same value again, so that WAIT on this connection, maybe a new one, waits for what stands there.
  redis.call('HSET', KEYS[1], 'token', ARGV[1])
  return {'TOP', text(epoch) .. '-' .. text(n)}
end
local id = ARGV[2] .. '-' .. ARGV[3]
redis.call('XADD', KEYS[2], 'MAXLEN', '~', '10000', id, 'kind', ARGV[4], 'body', ARGV[5])
return {'OK', id}
