#!lua flags=allow-oom
-- defer.lua: units are given up until a message comes for them again: at their time, holding neither slot nor lease,
-- or at once, by a message that the caller publishes itself (then the time is only a safeguard).
-- KEYS  1 job  2 page  3 due  4 clock
-- ARGV  1 now_ms  2 prefix of the members of due  3 JSON {counter: n}  4 JSON [[position, fence, attempts, requeues, 1 if no call was made], ...]
--       5 JSON [[token, delay ms, 1 if it must wait], ...]
-- Reply verdicts of the units: deferred | stale | gone. Nothing becomes due unless all are deferred.
--@include clock.lua
--@include unit.lua
local now, reply = lease_clock(KEYS[4], ARGV[1]), {}
local entries = cjson.decode(ARGV[4])
local here, all, stale = redis.call('EXISTS', KEYS[2]) == 1, true, 0
for i, entry in ipairs(entries) do
  local u = here and read_unit(KEYS[2], entry[1])
  if not here then reply[i], all = 'gone', false
  elseif not u or entry[2] < u.fence then
    reply[i], all, stale = 'stale', false, stale + 1
    if not u and redis.call('HEXISTS', KEYS[2], 'r:' .. entry[1]) == 0 then  -- its message is gone
      redis.call('ZADD', KEYS[3], 'NX', now, ARGV[2] .. entry[1])
    end
  else
    u.fence, u.attempts, u.requeues, u.calls, u.owner = entry[2], entry[3], entry[4], u.calls - entry[5], ''
    write_unit(KEYS[2], entry[1], u)
    reply[i] = 'deferred'
  end
end
if here then
  count(KEYS[1], cjson.decode(ARGV[3]))
  count(KEYS[1], {stale = stale})
end
if all then
  for _, token in ipairs(cjson.decode(ARGV[5])) do
    redis.call('ZADD', KEYS[3], now + token[2], ARGV[2] .. token[1])
    if token[3] == 1 then redis.call('HSET', KEYS[2], 'w:' .. token[1], 1) end
  end
end
return reply
