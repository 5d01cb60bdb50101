#!lua flags=allow-oom
-- waits.lua: whoever cannot go on with a job says for what it waits, for those who watch it.
-- KEYS  1 job      ARGV  1 now_ms  2 reason
-- Reply 1 if the job is there. Holds: no job comes to be by this.
--@include ../../workers/store/clock.lua
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'waits_for', ARGV[2], 'waits_ms', wall_clock(ARGV[1]))
return 1
