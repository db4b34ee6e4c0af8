-- lease_peek: the ownership record as stored, with the server's incarnation. Writes nothing.
-- KEYS[1] lease
-- KEYS[2] epoch
-- KEYS[3] log
-- Replies
--   OK run_id master_replid role replicas now_ms epoch_key log_top field value ...
--   NONE run_id master_replid role replicas now_ms epoch_key log_top   (no record)
-- replicas: those in step now.
-- A server that hides INFO gives '' for run_id, master_replid or role: the caller refuses it.

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

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The newest id ever given, also when the entries themselves are trimmed away.
local function log_top(key)
  if redis.call('EXISTS', key) == 0 then
    return 0, 0
  end
  local info = redis.call('XINFO', 'STREAM', key)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then
      local epoch, n = string.match(info[i + 1], '^(%d+)-(%d+)$')
      return tonumber(epoch), tonumber(n)
    end
  end
  return 0, 0
end

-- Replicas that are in step: one that still loads, or a backup that reads along once, confirms nothing.
local function replicas_online()
  local count = 0
  for offset in string.gmatch(redis.call('INFO', 'replication'), 'state=online,offset=(%d+)') do
    if offset ~= '0' then
      count = count + 1
    end
  end
  return count
end

local server, replication = redis.call('INFO', 'server'), redis.call('INFO', 'replication')
local epoch, n = log_top(KEYS[3])
-- A key of another type is shown as what is no number either: the lease can be read all the same.
local epoch_key = redis.pcall('GET', KEYS[2])
local head = {
  string.match(server, 'run_id:(%x+)') or '',
  string.match(replication, 'master_replid:(%x+)') or '',
  string.match(replication, 'role:(%a+)') or '',
  text(replicas_online()),
  text(now_ms()),
  type(epoch_key) == 'table' and '?' or epoch_key or '0',
  text(epoch) .. '-' .. text(n),
}
local record = redis.call('HGETALL', KEYS[1])
local found = #record > 0
return joined(joined({found and 'OK' or 'NONE'}, head), record)
