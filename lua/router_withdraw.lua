-- router_withdraw: deletes a router's entry if it is still that run's.
-- KEYS[1] routers
-- KEYS[2] router:<id>
-- ARGV[1] router ID
-- ARGV[2] run
-- Replies
--   OK           gone
--   OTHER run    another run has taken the ID: nothing deleted

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
redis.call('DEL', KEYS[2])
redis.pcall('ZREM', KEYS[1], ARGV[1])
return {'OK'}
