#!lua flags=allow-oom
-- cancel.lua: no new call from now on. What is published passes the gates without a lease and is recorded as cancelled.
-- KEYS  1 job  2 job_limits  3 pages  4 due  5 clock  6 unfinished
-- ARGV  1 now_ms  2 job id  3 lanes  4 a name of this attempt  5 why it is revoked, '' if it is only cancelled
--       6 deferred members...
-- Reply {state before, 1 if nothing is open and the job is to be finished}; the same to who asks again.
--@include ../../workers/store/clock.lua
local state, canceller = unpack(redis.call('HMGET', KEYS[1], 'state', 'canceller'))
local before = string.match(canceller or '', '^(%a+) ' .. ARGV[4] .. '$')
if before then return {before, state == 'finishing' and 1 or 0} end
if state ~= 'submitted' and state ~= 'running' then return {state or '', 0} end
local now = lease_clock(KEYS[5], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[2])
for l = 0, ARGV[3] - 1 do redis.call('HSET', KEYS[1], 'cursor:' .. l, '') end
for i = 6, #ARGV do redis.call('ZADD', KEYS[4], 'XX', now, ARGV[i]) end
local idle = redis.call('SCARD', KEYS[3]) == 0
redis.call('HSET', KEYS[1], 'state', idle and 'finishing' or 'cancelling', 'outcome', 'cancelled',
           'canceller', state .. ' ' .. ARGV[4])
if ARGV[5] ~= '' then redis.call('HSET', KEYS[1], 'revoked', ARGV[5]) end
redis.call('ZADD', KEYS[6], now, ARGV[2])
return {state, idle and 1 or 0}
