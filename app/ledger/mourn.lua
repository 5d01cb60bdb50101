#!lua flags=allow-oom
-- mourn.lua: a job that was unfinished a moment ago, and of which the store knows nothing now, is on record as lost.
-- KEYS  1 job  2 jobs      ARGV  1 now_ms  2 job id  3 retention s  4... further fields: project, units, created_ms
-- Reply 1 for the one call that recorded it; 0 if there is a job of this id.
--@include clock.lua
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local now = wall_clock(ARGV[1])
redis.call('HSET', KEYS[1], 'state', 'lost', 'finished_ms', now, 'lanes', '[]', unpack(ARGV, 4))
redis.call('EXPIRE', KEYS[1], ARGV[3])
redis.call('ZADD', KEYS[2], now, ARGV[2])
return 1
