-- totals_flush: keeps the greater of each counter of each run. Absolute values: repeating changes nothing.
-- KEYS[1] totals
-- ARGV[1..] run counters ...   counters: JSON object of name -> integer
-- Replies
--   OK run counters ...          all runs stored

-- Not unpack(): its limit is some thousand values.
local function joined(reply, more)
  for _, word in ipairs(more) do
    reply[#reply + 1] = word
  end
  return reply
end

-- tostring() would give 4.5e+15 for large numbers.
local function text(number)
  return string.format('%.0f', number)
end

-- First write: HDEL frees, so it is allowed at maxmemory, and the later writes of a script that has
-- written are allowed too. On a replica it fails here, before anything is decided from old data.
redis.call('HDEL', KEYS[1], '-')

-- What no router wrote counts for nothing: no object, no number, one out of range.
local function counters(json)
  local read, fields = pcall(cjson.decode, json or '{}')
  local kept = {}
  for name, count in pairs(read and type(fields) == 'table' and fields or {}) do
    if type(name) == 'string' and type(count) == 'number' and count >= 0 and count <= 9007199254740992 then
      kept[name] = count
    end
  end
  return kept
end

-- By hand: cjson would write large counts as 1e+14, and in any order.
local function encode(fields)
  local names, parts = {}, {}
  for name in pairs(fields) do
    names[#names + 1] = name
  end
  table.sort(names)
  for i, name in ipairs(names) do
    parts[i] = cjson.encode(name) .. ':' .. text(fields[name])
  end
  return '{' .. table.concat(parts, ',') .. '}'
end

for i = 1, #ARGV, 2 do
  local stored = redis.call('HGET', KEYS[1], ARGV[i])
  local kept = counters(stored or nil)
  for name, count in pairs(counters(ARGV[i + 1])) do
    kept[name] = math.max(kept[name] or 0, count)
  end
  local json = encode(kept)
  if json ~= stored then
    redis.call('HSET', KEYS[1], ARGV[i], json)
  end
end
return joined({'OK'}, redis.call('HGETALL', KEYS[1]))
