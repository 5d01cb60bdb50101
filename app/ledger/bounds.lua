#!lua flags=allow-oom
-- bounds.lua: what a running job is bounded by, and when it is to be looked at next.
-- KEYS  1 job  2 bounded  3 clock
-- ARGV  1 now_ms  2 job id
-- Reply {now_ms, ms when it began, ms that a unit may take, ms when it ends, ms that it waits for a pool that is down},
--       -1 for no such bound; {} if it does not run, and then nobody looks any more. All but durations are of the lease
--       clock.
--@include ../../workers/store/clock.lua
local job, bounded, clock = unpack(KEYS)
local given_ms, job_id = unpack(ARGV)
local SOONEST_MS, LATEST_MS, PART = 250, 30000, 20
local state, began, unit, ends, down =
  unpack(redis.call('HMGET', job, 'state', 'began_ms', 'unit_ms', 'ends_ms', 'pool_down_ms'))
if state ~= 'running' then
  redis.call('ZREM', bounded, job_id)
  return {}
end
local now, wait = lease_clock(clock, given_ms), LATEST_MS
for _, ms in ipairs({unit or false, down or false}) do
  if ms then wait = math.min(wait, math.max(1000, ms / PART)) end
end
if ends and tonumber(ends) > now then wait = math.min(wait, ends - now) end
if ends and tonumber(ends) <= now then wait = math.min(wait, 1000) end
redis.call('ZADD', bounded, 'XX', now + math.floor(math.max(SOONEST_MS, wait)), job_id)
return {now, tonumber(began or now), tonumber(unit or -1), tonumber(ends or -1), tonumber(down or -1)}
