#!lua
-- start.lua: a submitted job starts once for each time that it is submitted or resumed, with its limit frozen.
-- KEYS  1 job  2 job_limits
-- ARGV  1 now_ms  2 job id  3 limit  4 how often it was resumed as far as the caller knows  5 a name of this attempt
-- Reply {state, 1 if this attempt started it, 1 if it should have been started sooner}. Nothing changes then, nor if the
--       job was resumed meanwhile: its files are not ready.
--@include clock.lua
local state, resumed, starter, expires =
  unpack(redis.call('HMGET', KEYS[1], 'state', 'resumed', 'starter', 'expires_ms'))
if starter == ARGV[5] then return {state, 1, 0} end
if state ~= 'submitted' or (resumed or '0') ~= ARGV[4] then return {state or '', 0, 0} end
if expires and wall_clock(ARGV[1]) > tonumber(expires) then return {state, 0, 1} end
redis.call('HSET', KEYS[1], 'state', 'running', 'started_ms', wall_clock(ARGV[1]), 'limit', ARGV[3], 'starter', ARGV[5])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
return {'running', 1, 0}
