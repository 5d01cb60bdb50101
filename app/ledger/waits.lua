#!lua flags=allow-oom
-- waits.lua: whoever cannot go on with a job says for what it waits, for those who watch it.
-- KEYS  1 job      ARGV  1 now_ms  2 reason
-- Reply 1 if the job is there. Holds: no job comes to be by this.
--@include ../../workers/store/clock.lua
local job = unpack(KEYS)
local given_ms, reason = unpack(ARGV)
if redis.call('EXISTS', job) == 0 then return 0 end
redis.call('HSET', job, 'waits_for', reason, 'waits_ms', wall_clock(given_ms))
return 1
