-- router_announce: one router's entry about itself, for people and for ordering. It lives 15 s.
-- KEYS[1] routers
-- KEYS[2] router:<id>
-- ARGV[1] router ID
-- ARGV[2] run
-- ARGV[3..] field value ...
-- Replies
--   OK
--   OTHER run    the entry of another run lives: the ID is taken, nothing written

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
local freed = redis.pcall('HDEL', KEYS[2], '-')
if type(freed) == 'table' and freed.err then
  if not string.find(freed.err, 'WRONGTYPE', 1, true) then
    return freed
  end
  -- Of another type: no router wrote it, so it counts for nothing.
  redis.call('DEL', KEYS[2])
end

local run = redis.call('HGET', KEYS[2], 'run')
if run and run ~= ARGV[2] then
  return {'OTHER', run}
end
local now = now_ms()
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], 'run', ARGV[2], 'seen_ms', text(now), unpack(ARGV, 3))
redis.call('PEXPIRE', KEYS[2], '15000')
local listed = redis.pcall('ZADD', KEYS[1], text(now), ARGV[1])
if type(listed) == 'table' and listed.err then
  -- Only another type is refused after a write: it is made anew, each router puts itself in again.
  redis.call('DEL', KEYS[1])
  redis.call('ZADD', KEYS[1], text(now), ARGV[1])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. text(now - 3600000))
return {'OK'}
