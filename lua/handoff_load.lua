-- handoff_load: the stored document with the server's time and incarnation. Writes nothing.
-- KEYS[1] handoff
-- Replies
--   OK inc now_ms field value ...
--   NONE inc now_ms

-- Not unpack(): its limit is some thousand values.
local function joined(reply, more)
  for _, word in ipairs(more) do
    reply[#reply + 1] = word
  end
  return reply
end

-- Read inside the script: an answer must not mix two lives of a server.
local function incarnation()
  local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
  local replid = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') or ''
  return run_id .. '/' .. replid
end

-- tostring() would give 4.5e+15 for large numbers.
local function text(number)
  return string.format('%.0f', number)
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local fields = redis.call('HGETALL', KEYS[1])
if #fields == 0 then
  return {'NONE', incarnation(), text(now_ms())}
end
return joined({'OK', incarnation(), text(now_ms())}, fields)
