#!lua flags=allow-oom
-- complete.lua: a job completes exactly once; its announcement stays in the outbox until somebody has made it.
-- KEYS  1 job  2 items  3 pages  4 job_limits  5 unfinished  6 outbox  7 jobs  8 bounded  9 score board
--       10 kept pages, which stay as long as it
-- ARGV  1 now_ms  2 job id  3 report  4 retention s  5 prefix of the jobs  6 a name of this attempt
--       7 incarnation whose report it is  8 1 if its items are in no file, and stay as long as it
-- Reply 1 if this attempt completed it.
--@include ../../workers/store/clock.lua
--@include ../../workers/store/many.lua
--@include caps.lua
local job, items, pages, job_limits, unfinished, outbox, jobs, bounded, board, kept = unpack(KEYS)
local given_ms, job_id, report, keep_s, jobs_prefix, attempt, reported, keeps_items = unpack(ARGV)
local state, outcome, completer, incarnation =
  unpack(redis.call('HMGET', job, 'state', 'outcome', 'completer', 'incarnation'))
if completer == attempt then return 1 end
if state ~= 'finishing' then return 0 end
if incarnation ~= reported then return 0 end
redis.call('HSET', job, 'state', outcome, 'report', report, 'finished_ms', wall_clock(given_ms), 'completer', attempt)
leave_all(job)
redis.call('DEL', pages, board)
if keeps_items == '1' then redis.call('EXPIRE', items, keep_s) else redis.call('DEL', items) end
redis.call('HDEL', job_limits, job_id)
redis.call('ZREM', unfinished, job_id)
redis.call('ZREM', bounded, job_id)
redis.call('SADD', outbox, job_id)
redis.call('EXPIRE', job, keep_s)
redis.call('EXPIRE', kept, keep_s)
for _, oldest in ipairs(redis.call('ZRANGE', jobs, 0, 9)) do  -- names whose jobs are past their retention
  if redis.call('EXISTS', jobs_prefix .. oldest) == 0 then redis.call('ZREM', jobs, oldest) end
end
return 1
