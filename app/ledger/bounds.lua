#!lua flags=allow-oom
-- bounds.lua: what a running job is bounded by, and when it is to be looked at next.
-- KEYS  1 job  2 bounded  3 clock
-- ARGV  1 now_ms  2 job id
-- Reply {now_ms, ms when it began, ms that a unit may take, ms when it ends, ms that it waits for a pool that is down}, -1
--       for no such bound; {} if it does not run, and then nobody looks any more. All but durations are of the lease clock.
--@include ../../workers/store/clock.lua
local SOONEST_MS, LATEST_MS, PART = 250, 30000, 20
local state, began, unit, ends, down =
  unpack(redis.call('HMGET', KEYS[1], 'state', 'began_ms', 'unit_ms', 'ends_ms', 'pool_down_ms'))
if state ~= 'running' then
  redis.call('ZREM', KEYS[2], ARGV[2])
  return {}
end
local now, wait = lease_clock(KEYS[3], ARGV[1]), LATEST_MS
for _, ms in ipairs({unit or false, down or false}) do
  if ms then wait = math.min(wait, math.max(1000, ms / PART)) end
end
if ends and tonumber(ends) > now then wait = math.min(wait, ends - now) end
if ends and tonumber(ends) <= now then wait = math.min(wait, 1000) end
redis.call('ZADD', KEYS[2], 'XX', now + math.floor(math.max(SOONEST_MS, wait)), ARGV[2])
return {now, tonumber(began or now), tonumber(unit or -1), tonumber(ends or -1), tonumber(down or -1)}
