#!lua flags=allow-oom
-- mark_lost.lua: a job that was unfinished a moment ago, and of which the store knows nothing now, is on record as lost. Its
-- waiters are told from the outbox, like those of a job that completed.
-- KEYS  1 job  2 jobs  3 outbox
-- ARGV  1 now_ms  2 job id  3 retention s  4 a name of this attempt  5... further fields: project, units, created_ms
-- Reply 1 for the one attempt that recorded it; 0 if there is a job of this id.
--@include ../../workers/store/clock.lua
if redis.call('EXISTS', KEYS[1]) == 1 then return redis.call('HGET', KEYS[1], 'mourner') == ARGV[4] and 1 or 0 end
local now = wall_clock(ARGV[1])
redis.call('HSET', KEYS[1], 'state', 'lost', 'finished_ms', now, 'lanes', '[]', 'mourner', unpack(ARGV, 4))
redis.call('EXPIRE', KEYS[1], ARGV[3])
redis.call('ZADD', KEYS[2], now, ARGV[2])
redis.call('SADD', KEYS[3], ARGV[2])
return 1
