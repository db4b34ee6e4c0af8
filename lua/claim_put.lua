-- claim_put: a standby's claim against a degraded owner, or the end of it. It counts for one epoch only.
-- KEYS[1] lease
-- KEYS[2] claims     the next acquire deletes them all
-- ARGV[1] router ID
-- ARGV[2] epoch      of the owner that it is made against
-- ARGV[3] claim      JSON object of epoch and reason; '' withdraws
-- Replies
--   OK         put, or withdrawn
--   CHANGED    that epoch does not hold the lease: nothing put

-- First write: HDEL frees, so it is allowed at maxmemory, and the later writes of a script that has
-- written are allowed too. On a replica it fails here, before anything is decided from old data.
redis.call('HDEL', KEYS[2], '-')

if ARGV[3] == '' then
  redis.call('HDEL', KEYS[2], ARGV[1])
  return {'OK'}
end
local lease = redis.call('HMGET', KEYS[1], 'state', 'epoch')
if lease[1] ~= 'held' or lease[2] ~= ARGV[2] then
  return {'CHANGED'}
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
return {'OK'}
