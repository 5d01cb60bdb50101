#!lua
-- resume.lua: an ended job is as it was submitted, except for what it has cost; what has a score is kept in its files.
-- KEYS  1 job  2 unfinished  3 clock  4 items  5 what it has stopped asking  6 kept pages
-- ARGV  1 now_ms  2 job id  3 lanes  4 grace ms until the sweeper looks after it  5 a name of this attempt
--       6... field, value of caps that it has from now on
-- Reply its state before; nothing changes unless that is completed or cancelled. The same to who asks again.
--@include ../../workers/store/clock.lua
--@include ../../workers/store/many.lua
--@include caps.lua
local job, unfinished, clock, items, asking, kept = unpack(KEYS)
local given_ms, job_id, lanes, grace_ms, attempt = unpack(ARGV, 1, 5)
local caps = rest(ARGV, 6)
local state, resumer = unpack(redis.call('HMGET', job, 'state', 'resumer'))
local before = string.match(resumer or '', '^(%a+) ' .. attempt .. '$')
if before then return before end
if state ~= 'completed' and state ~= 'cancelled' then return state or '' end
local now = lease_clock(clock, given_ms)
redis.call('HDEL', job, 'report', 'revoked', 'expires_ms', 'outcome', 'finisher', 'started_ms', 'finished_ms',
           'published', 'done', 'scored', 'failed', 'spared', 'answerer', 'why', 'waits_for', 'waits_ms', 'stuck',
           'failer', 'finish_tries', 'finish_ms', 'salvage', 'gather_tries', 'gather_ms', 'gather_since',
           'gather_failer', 'gather_answer', 'capped', 'short')
if #caps > 0 then redis.call('HSET', job, unpack(caps)) end
leave_all(job)  -- nobody tells of those calls any more: their pages are gone
redis.call('DEL', asking)  -- what stopped it may be mended
for lane = 0, lanes - 1 do
  -- Pages are counted on: the names of their messages and chords never come twice.
  for _, field in ipairs({'cursor:', 'open:', 'low:', 'planning:', 'stopped:'}) do
    redis.call('HDEL', job, field .. lane)
  end
  redis.call('HSET', job, 'from:' .. lane, redis.call('HGET', job, 'page:' .. lane) or 0)
end
redis.call('HSET', job, 'state', 'submitted', 'resumer', state .. ' ' .. attempt)
redis.call('HINCRBY', job, 'resumed', 1)
redis.call('PERSIST', job)
redis.call('PERSIST', items)
redis.call('PERSIST', kept)
redis.call('ZADD', unfinished, now + tonumber(grace_ms), job_id)
return state
