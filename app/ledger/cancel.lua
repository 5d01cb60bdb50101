#!lua flags=allow-oom
-- cancel.lua: no new call from now on. What is published passes the gates without a lease and is recorded as cancelled.
-- A job whose finishing has failed ends as cancelled, with what can be read of its results.
-- KEYS  1 job  2 job_limits  3 pages  4 due  5 clock  6 unfinished
-- ARGV  1 now_ms  2 job id  3 lanes  4 a name of this attempt  5 why it is revoked, '' if it is only cancelled
--       6 why it is cancelled, '' if nobody says  7... members of due that are deferred
-- Reply {state before, 1 if nothing is open and the job is to be finished}; the same to who asks again.
--@include ../../workers/store/clock.lua
--@include ../../workers/store/many.lua
local job, job_limits, pages, due, clock, unfinished = unpack(KEYS)
local given_ms, job_id, lanes, attempt, revoked, why = unpack(ARGV, 1, 6)
local deferred = rest(ARGV, 7)
local state, canceller, stuck, reason = unpack(redis.call('HMGET', job, 'state', 'canceller', 'stuck', 'why'))
local before = string.match(canceller or '', '^(%a+) ' .. attempt .. '$')
if before then return {before, state == 'finishing' and 1 or 0} end
local given_up = state == 'finishing' and stuck
if state ~= 'submitted' and state ~= 'running' and not given_up then return {state or '', 0} end
local now = lease_clock(clock, given_ms)
if why ~= '' then redis.call('HSET', job, 'why', why) end
if revoked ~= '' then redis.call('HSET', job, 'revoked', revoked) end
if given_up then
  redis.call('HSET', job, 'outcome', 'cancelled', 'salvage', 1, 'canceller', state .. ' ' .. attempt)
  if why == '' and not reason then redis.call('HSET', job, 'why', stuck) end
  redis.call('ZADD', unfinished, now, job_id)
  return {state, 1}
end
redis.call('HDEL', job_limits, job_id)
for lane = 0, lanes - 1 do redis.call('HSET', job, 'cursor:' .. lane, '') end
for _, member in ipairs(deferred) do redis.call('ZADD', due, 'XX', now, member) end
local idle = redis.call('SCARD', pages) == 0
redis.call('HSET', job, 'state', idle and 'finishing' or 'cancelling', 'outcome', 'cancelled',
           'canceller', state .. ' ' .. attempt)
redis.call('ZADD', unfinished, now, job_id)
return {state, idle and 1 or 0}
