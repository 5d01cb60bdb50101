#!lua
-- start.lua: a submitted job starts once for each time that it is submitted or resumed, with its limit frozen.
-- KEYS  1 job  2 job_limits
-- ARGV  1 now_ms  2 job id  3 limit  4 how often it was resumed as far as the caller knows  5 a name of this attempt
-- Reply {state, 1 if this attempt started it}. Nothing changes if the job was resumed meanwhile: its files are not ready.
--@include clock.lua
local state, resumed, starter = unpack(redis.call('HMGET', KEYS[1], 'state', 'resumed', 'starter'))
if starter == ARGV[5] then return {state, 1} end
if state ~= 'submitted' or (resumed or '0') ~= ARGV[4] then return {state or '', 0} end
redis.call('HSET', KEYS[1], 'state', 'running', 'started_ms', wall_clock(ARGV[1]), 'limit', ARGV[3], 'starter', ARGV[5])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
return {'running', 1}
