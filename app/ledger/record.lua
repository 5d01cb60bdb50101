#!lua flags=allow-oom
-- record.lua: results take effect once, whoever brings them and however often.
-- KEYS  1 job  2 page  3 epoch  4 due  5 clock
-- ARGV  1 now_ms  2 lane  3 JSON {counter: n}  4 JSON [[position, fence, result, scored 1|0], ...]
--       5 prefix of the members of due
-- Reply {left in the page, 1 if the lane wants planning, 1 if no chord will gather the page, verdict, ...}; verdict:
--       new | again (a result is there) | stale (an old fence) | gone (the page is gathered).
-- A fence that is newer than the stored one, or where none is stored than the epoch that the page was opened in, is of a claim
-- that an older copy of the store does not have: it counts. An older one that nobody has replaced becomes due, for its message is gone.
-- Holds: left = units of the page without a result; a unit's first result stays.
--@include clock.lua
--@include unit.lua
local lane, entries = ARGV[2], cjson.decode(ARGV[4])
local reply = {-1, 0, 0}
if redis.call('EXISTS', KEYS[2]) == 0 then
  if redis.call('EXISTS', KEYS[1]) == 1 then count(KEYS[1], {stale = #entries}) end
  for _ = 1, #entries do reply[#reply + 1] = 'gone' end
  return reply
end
local new, scored, stale = 0, 0, 0
local opened_in = tonumber(redis.call('HGET', KEYS[2], 'epoch'))
local epoch = opened_in and opened_in + 1 or tonumber(redis.call('HGET', KEYS[3], 'number') or math.huge)
for _, entry in ipairs(entries) do
  local position, verdict = entry[1], 'new'
  local u = read_unit(KEYS[2], position)
  if redis.call('HEXISTS', KEYS[2], 'r:' .. position) == 1 then verdict = 'again'
  elseif entry[2] < (u and u.fence or epoch) then
    verdict, stale = 'stale', stale + 1
    if not u then redis.call('ZADD', KEYS[4], 'NX', lease_clock(KEYS[5], ARGV[1]), ARGV[5] .. position) end
  else
    redis.call('HSET', KEYS[2], 'r:' .. position, entry[3])
    redis.call('HDEL', KEYS[2], 'u:' .. position)
    new, scored = new + 1, scored + entry[4]
  end
  reply[#reply + 1] = verdict
end
local counters = cjson.decode(ARGV[3])
counters.done, counters.scored, counters.failed, counters.stale = new, scored, new - scored, stale
count(KEYS[1], counters)
if new == 0 then
  reply[1] = tonumber(redis.call('HGET', KEYS[2], 'left'))
else
  reply[1] = redis.call('HINCRBY', KEYS[2], 'left', -new)
  local open = redis.call('HINCRBY', KEYS[1], 'open:' .. lane, -new)
  local job = redis.call('HMGET', KEYS[1], 'state', 'cursor:' .. lane, 'low:' .. lane)
  if job[1] == 'running' and job[2] ~= '' and open <= tonumber(job[3]) and
     redis.call('HSETNX', KEYS[1], 'planning:' .. lane, 1) == 1 then reply[2] = 1 end
end
if reply[1] == 0 and redis.call('HEXISTS', KEYS[2], 'unchorded') == 1 then reply[3] = 1 end
return reply
