#!lua
-- start.lua: a submitted job starts once for each time that it is submitted or resumed, with its limit and its
-- deadlines frozen: they are instants of the lease clock from now on.
-- KEYS  1 job  2 job_limits  3 clock  4 bounded
-- ARGV  1 now_ms  2 job id  3 limit  4 how often it was resumed as far as the caller knows  5 a name of this attempt
--       6 ms that a unit may take, 7 that the job may take  8 wall-clock ms when it must have ended  9 ms that it waits
--       for a pool that is down; each '' if there is no such bound
-- Reply {state, 1 if this attempt started it, 1 if it should have been started sooner}. Nothing changes then, nor if
--       the job was resumed meanwhile: its files are not ready.
--@include ../../workers/store/clock.lua
local job, job_limits, clock, bounded = unpack(KEYS)
local given_ms, job_id, limit, resumed_before, attempt, unit_ms, job_ms, ends_at_ms, pool_down_ms = unpack(ARGV)
local state, resumed, starter, expires =
  unpack(redis.call('HMGET', job, 'state', 'resumed', 'starter', 'expires_ms'))
if starter == attempt then return {state, 1, 0} end
if state ~= 'submitted' or (resumed or '0') ~= resumed_before then return {state or '', 0, 0} end
local wall, now, ends = wall_clock(given_ms), lease_clock(clock, given_ms), math.huge
if expires and wall > tonumber(expires) then return {state, 0, 1} end
redis.call('HSET', job, 'state', 'running', 'started_ms', wall, 'limit', limit, 'starter', attempt)
redis.call('HSET', job_limits, job_id, limit)
if job_ms ~= '' then ends = now + job_ms end
if ends_at_ms ~= '' then ends = math.min(ends, now + ends_at_ms - wall) end
redis.call('HDEL', job, 'unit_ms', 'ends_ms', 'pool_down_ms')
redis.call('HSET', job, 'began_ms', now)
if unit_ms ~= '' then redis.call('HSET', job, 'unit_ms', unit_ms) end
if ends < math.huge then redis.call('HSET', job, 'ends_ms', string.format('%d', ends)) end
if pool_down_ms ~= '' then redis.call('HSET', job, 'pool_down_ms', pool_down_ms) end
if unit_ms .. job_ms .. ends_at_ms .. pool_down_ms ~= '' then redis.call('ZADD', bounded, now, job_id) end
return {'running', 1, 0}
