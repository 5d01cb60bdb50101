#!lua flags=allow-oom
-- complete.lua: a job completes exactly once; its announcement stays in the outbox until somebody has made it.
-- KEYS  1 job  2 items  3 pages  4 job_limits  5 unfinished  6 outbox  7 jobs  8 bounded
-- ARGV  1 now_ms  2 job id  3 report  4 retention s  5 prefix of the jobs  6 a name of this attempt
--       7 incarnation whose report it is
-- Reply 1 if this attempt completed it.
--@include ../../workers/store/clock.lua
local state, outcome, completer, incarnation = unpack(redis.call('HMGET', KEYS[1], 'state', 'outcome', 'completer',
  'incarnation'))
if completer == ARGV[6] then return 1 end
if state ~= 'finishing' then return 0 end
if incarnation ~= ARGV[7] then return 0 end
redis.call('HSET', KEYS[1], 'state', outcome, 'report', ARGV[3], 'finished_ms', wall_clock(ARGV[1]), 'completer', ARGV[6])
redis.call('DEL', KEYS[2], KEYS[3])
redis.call('HDEL', KEYS[4], ARGV[2])
redis.call('ZREM', KEYS[5], ARGV[2])
redis.call('ZREM', KEYS[8], ARGV[2])
redis.call('SADD', KEYS[6], ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[4])
for _, oldest in ipairs(redis.call('ZRANGE', KEYS[7], 0, 9)) do  -- names whose jobs are past their retention
  if redis.call('EXISTS', ARGV[5] .. oldest) == 0 then redis.call('ZREM', KEYS[7], oldest) end
end
return 1
