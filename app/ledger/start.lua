#!lua
-- start.lua: a submitted job starts once, with its limit frozen.
-- KEYS  1 job  2 job_limits      ARGV  1 now_ms  2 job id  3 limit
-- Reply {state, 1 if this call started it}.
--@include clock.lua
local state = redis.call('HGET', KEYS[1], 'state')
if state ~= 'submitted' then return {state or '', 0} end
redis.call('HSET', KEYS[1], 'state', 'running', 'started_ms', wall_clock(ARGV[1]), 'limit', ARGV[3])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
return {'running', 1}
