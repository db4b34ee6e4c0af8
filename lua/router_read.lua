-- router_read: the entries of some routers. Writes nothing.
-- KEYS[1] router:<id>, and as many more as asked for
-- Replies
--   OK json ...   an object of field -> value for each key, {} where the entry has ended

if not KEYS[1] then
  return {'OK'}
end
local reply = {'OK'}
for i, key in ipairs(KEYS) do
  -- A key of another type is as good as none: the others can be read.
  local flat, fields = redis.pcall('HGETALL', key), {}
  for j = 1, #flat, 2 do
    fields[flat[j]] = flat[j + 1]
  end
  reply[i + 1] = cjson.encode(fields)
end
return reply
