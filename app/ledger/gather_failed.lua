#!lua flags=allow-oom
-- gather_failed.lua: a page of a job could not be written to its file. Tries at different times count until a page is
-- closed again; with so many, over so long, the job is to be cancelled. One that is cancelled already waits for no
-- disk.
-- KEYS  1 job  2 clock
-- ARGV  1 now_ms  2 why  3 ms between two tries that count  4 tries  5 ms between the first and the last of them
--       6 a name of this attempt
-- Reply {state, 1 if its pages are to be kept in the store, and a job that runs is to be cancelled}; the same to who
--       asks again.
--@include ../../workers/store/clock.lua
local job, clock = unpack(KEYS)
local given_ms, why, every_ms, most, over_ms, attempt = unpack(ARGV)
local state, tries, at, since, failer, answer =
  unpack(redis.call('HMGET', job, 'state', 'gather_tries', 'gather_ms', 'gather_since', 'gather_failer',
                    'gather_answer'))
if state ~= 'running' and state ~= 'cancelling' then return {state or '', 0} end
if failer == attempt then return {state, tonumber(answer)} end
local now = lease_clock(clock, given_ms)
tries = tonumber(tries or 0)
if tries == 0 then
  since = now
  redis.call('HSET', job, 'gather_since', since)
end
if tries == 0 or now >= tonumber(at) + every_ms then
  tries = tries + 1
  redis.call('HSET', job, 'gather_tries', tries, 'gather_ms', now)
end
local given_up = (state == 'cancelling' or tries >= tonumber(most) and now - since >= tonumber(over_ms)) and 1 or 0
redis.call('HSET', job, 'gather_failer', attempt, 'gather_answer', given_up, 'waits_for', why,
           'waits_ms', wall_clock(given_ms))
return {state, given_up}
