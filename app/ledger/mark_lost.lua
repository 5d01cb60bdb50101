#!lua flags=allow-oom
-- mark_lost.lua: a job that was unfinished a moment ago, and of which the store knows nothing now, is on record as
-- lost. Its waiters are told from the outbox, like those of a job that completed.
-- KEYS  1 job  2 jobs  3 outbox
-- ARGV  1 now_ms  2 job id  3 retention s  4 a name of this attempt  5... further fields: project, units, created_ms
-- Reply 1 for the one attempt that recorded it; 0 if there is a job of this id.
--@include ../../workers/store/clock.lua
--@include ../../workers/store/many.lua
local job, jobs, outbox = unpack(KEYS)
local given_ms, job_id, keep_s, attempt = unpack(ARGV, 1, 4)
local facts = rest(ARGV, 5)
if redis.call('EXISTS', job) == 1 then return redis.call('HGET', job, 'mourner') == attempt and 1 or 0 end
local now = wall_clock(given_ms)
redis.call('HSET', job, 'state', 'lost', 'finished_ms', now, 'lanes', '[]', 'mourner', attempt, unpack(facts))
redis.call('EXPIRE', job, keep_s)
redis.call('ZADD', jobs, now, job_id)
redis.call('SADD', outbox, job_id)
return 1
