#!lua flags=allow-oom
-- cancel.lua: no new call from now on. What is published passes the gates without a lease and is recorded as cancelled.
-- KEYS  1 job  2 job_limits  3 pages  4 due  5 clock  6 unfinished
-- ARGV  1 now_ms  2 job id  3 lanes  4 a name of this attempt  5 why it is revoked, '' if it is only cancelled
--       6... members of due that are deferred
-- Reply {state before, 1 if nothing is open and the job is to be finished}; the same to who asks again.
--@include ../../workers/store/clock.lua
--@include ../../workers/store/many.lua
local job, job_limits, pages, due, clock, unfinished = unpack(KEYS)
local given_ms, job_id, lanes, attempt, revoked = unpack(ARGV, 1, 5)
local deferred = rest(ARGV, 6)
local state, canceller = unpack(redis.call('HMGET', job, 'state', 'canceller'))
local before = string.match(canceller or '', '^(%a+) ' .. attempt .. '$')
if before then return {before, state == 'finishing' and 1 or 0} end
if state ~= 'submitted' and state ~= 'running' then return {state or '', 0} end
local now = lease_clock(clock, given_ms)
redis.call('HDEL', job_limits, job_id)
for lane = 0, lanes - 1 do redis.call('HSET', job, 'cursor:' .. lane, '') end
for _, member in ipairs(deferred) do redis.call('ZADD', due, 'XX', now, member) end
local idle = redis.call('SCARD', pages) == 0
redis.call('HSET', job, 'state', idle and 'finishing' or 'cancelling', 'outcome', 'cancelled',
           'canceller', state .. ' ' .. attempt)
if revoked ~= '' then redis.call('HSET', job, 'revoked', revoked) end
redis.call('ZADD', unfinished, now, job_id)
return {state, idle and 1 or 0}
