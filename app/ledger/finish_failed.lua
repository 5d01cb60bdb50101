#!lua flags=allow-oom
-- finish_failed.lua: a finishing job could not be finished. Any node may try it next; tries at different times count,
-- and with so many the job is given up: it ends as cancelled, with what can be read of its results.
-- KEYS  1 job  2 clock
-- ARGV  1 now_ms  2 node  3 why  4 ms between two tries that count  5 tries  6 tries of a job that is cancelled already
--       7 a name of this attempt
-- Reply {1 if the job is finishing, 1 if it is given up}; the same to who asks again.
--@include ../../workers/store/clock.lua
local job, clock = unpack(KEYS)
local given_ms, node, why, every_ms, most, most_cancelled, attempt = unpack(ARGV)
local state, outcome, finisher, failer, tries, at, salvage, reason =
  unpack(redis.call('HMGET', job, 'state', 'outcome', 'finisher', 'failer', 'finish_tries', 'finish_ms', 'salvage',
                    'why'))
if state ~= 'finishing' then return {0, 0} end
if failer == attempt then return {1, salvage and 1 or 0} end
if finisher == node then redis.call('HDEL', job, 'finisher') end
local now = lease_clock(clock, given_ms)
tries = tonumber(tries or 0)
if now >= tonumber(at or 0) + every_ms or tries == 0 then
  tries = tries + 1
  redis.call('HSET', job, 'finish_tries', tries, 'finish_ms', now)
end
redis.call('HSET', job, 'failer', attempt, 'stuck', why, 'waits_for', why, 'waits_ms', wall_clock(given_ms))
if tries >= tonumber(outcome == 'cancelled' and most_cancelled or most) then
  redis.call('HSET', job, 'outcome', 'cancelled', 'salvage', 1)
  if not reason then redis.call('HSET', job, 'why', why) end
  salvage = 1
end
return {1, salvage and 1 or 0}
