-- router_list: router IDs, longest unseen first, of the last hour. Writes nothing.
-- KEYS[1] routers
-- Replies
--   OK id ...

-- Not unpack(): its limit is some thousand values.
local function joined(reply, more)
  for _, word in ipairs(more) do
    reply[#reply + 1] = word
  end
  return reply
end

return joined({'OK'}, redis.call('ZRANGE', KEYS[1], '0', '-1'))
