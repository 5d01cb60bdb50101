#!lua
-- start.lua: a submitted job starts once for each time that it is submitted or resumed, with its limit and its deadlines
-- frozen: they are instants of the lease clock from now on.
-- KEYS  1 job  2 job_limits  3 clock  4 bounded
-- ARGV  1 now_ms  2 job id  3 limit  4 how often it was resumed as far as the caller knows  5 a name of this attempt
--       6 ms that a unit may take, 7 that the job may take  8 wall-clock ms when it must have ended  9 ms that it waits for a
--       pool that is down; each '' if there is no such bound
-- Reply {state, 1 if this attempt started it, 1 if it should have been started sooner}. Nothing changes then, nor if the
--       job was resumed meanwhile: its files are not ready.
--@include ../../workers/store/clock.lua
local state, resumed, starter, expires =
  unpack(redis.call('HMGET', KEYS[1], 'state', 'resumed', 'starter', 'expires_ms'))
if starter == ARGV[5] then return {state, 1, 0} end
if state ~= 'submitted' or (resumed or '0') ~= ARGV[4] then return {state or '', 0, 0} end
if expires and wall_clock(ARGV[1]) > tonumber(expires) then return {state, 0, 1} end
redis.call('HSET', KEYS[1], 'state', 'running', 'started_ms', wall_clock(ARGV[1]), 'limit', ARGV[3], 'starter', ARGV[5])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
local now, ends = lease_clock(KEYS[3], ARGV[1]), math.huge
if ARGV[7] ~= '' then ends = now + ARGV[7] end
if ARGV[8] ~= '' then ends = math.min(ends, now + ARGV[8] - wall_clock(ARGV[1])) end
redis.call('HDEL', KEYS[1], 'unit_ms', 'ends_ms', 'pool_down_ms')
redis.call('HSET', KEYS[1], 'began_ms', now)
if ARGV[6] ~= '' then redis.call('HSET', KEYS[1], 'unit_ms', ARGV[6]) end
if ends < math.huge then redis.call('HSET', KEYS[1], 'ends_ms', string.format('%d', ends)) end
if ARGV[9] ~= '' then redis.call('HSET', KEYS[1], 'pool_down_ms', ARGV[9]) end
if ARGV[6] .. ARGV[7] .. ARGV[8] .. ARGV[9] ~= '' then redis.call('ZADD', KEYS[4], now, ARGV[2]) end
return {'running', 1, 0}
