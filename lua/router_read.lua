-- router_read: the entries of some routers. Writes nothing.
-- KEYS[1] router:<id>, and as many more as asked for
-- Replies
--   OK now_ms json ...   an object of field -> value for each key, {} where the entry has ended

-- tostring() would give 4.5e+15 for large numbers.
local function text(number)
  return string.format('%.0f', number)
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local reply = {'OK', text(now_ms())}
if not KEYS[1] then
  return reply
end
for i, key in ipairs(KEYS) do
  -- A key of another type is as good as none: the others can be read.
  local flat, fields = redis.pcall('HGETALL', key), {}
  for j = 1, #flat, 2 do
    fields[flat[j]] = flat[j + 1]
  end
  reply[i + 2] = cjson.encode(fields)
end
return reply
