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

local listed = redis.pcall('ZRANGE', KEYS[1], '0', '-1')
if listed.err and not string.find(listed.err, 'WRONGTYPE', 1, true) then
  return listed
end
-- Of another type it lists nobody, until the next router announces itself and makes it anew.
return joined({'OK'}, listed.err and {} or listed)
