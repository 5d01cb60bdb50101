#!lua flags=allow-oom
-- answer.lua: a job's question is answered once, and nothing more of the job is published. What is open ends as usual.
-- KEYS  1 job  2 pages  3 unfinished  4 clock
-- ARGV  1 now_ms  2 job id  3 lanes  4 incarnation  5 answer, '' if a cap is met instead  6 a name of this attempt
-- Reply {1 if this attempt's answer stands, 1 if nothing is open and the job is to be finished}. Nothing changes unless
--       the job runs and has no answer. The same attempt again is answered as the first time.
-- Holds: where planning stopped is kept in stopped:<lane>, as the lane's cursor was.
--@include ../../workers/store/clock.lua
local job, pages, unfinished, clock = unpack(KEYS)
local given_ms, job_id, lanes, incarnation, answer, attempt = unpack(ARGV)
local state, present, answerer, answered =
  unpack(redis.call('HMGET', job, 'state', 'incarnation', 'answerer', 'answer'))
if answerer == attempt then return {1, state == 'finishing' and 1 or 0} end
if state ~= 'running' or present ~= incarnation or answerer or (answered and answer ~= '') then return {0, 0} end
for lane = 0, lanes - 1 do
  redis.call('HSET', job, 'stopped:' .. lane, redis.call('HGET', job, 'cursor:' .. lane) or '{"position":0}',
             'cursor:' .. lane, '')
end
redis.call('HSET', job, 'answerer', attempt)
if answer ~= '' then redis.call('HSET', job, 'answer', answer) end
if redis.call('SCARD', pages) > 0 then return {1, 0} end
redis.call('HSET', job, 'state', 'finishing', 'outcome', 'completed')
redis.call('ZADD', unfinished, lease_clock(clock, given_ms), job_id)
return {1, 1}
