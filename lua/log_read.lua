-- log_read: the oldest entries above an id, at most 500. Writes nothing.
-- KEYS[1] log
-- ARGV[1] after      id, exclusive; 0-0 = from the beginning
-- ARGV[2] through    id, inclusive; + = to the end
-- Replies
--   OK id kind body ...

local reply = {'OK'}
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], ARGV[2], 'COUNT', '500')) do
  local fields = entry[2]
  reply[#reply + 1] = entry[1]
  reply[#reply + 1] = fields[2]
  reply[#reply + 1] = fields[4]
end
return reply
