#!lua
-- submit.lua: a job is in the ledger whole, or not at all.
-- KEYS  1 job  2 items  3 staged items  4 jobs  5 unfinished  6 clock  7 outbox  8 pages  9 watch
--       10 assigned  11 score board  12 kept pages
-- ARGV  1 now_ms  2 job id  3 digest  4 grace ms until the sweeper looks after it  5 how many items are staged
--       6 a name of this attempt  7... field, value of the job's hash
-- Reply 'new' | 'same' (this very job is there) | 'other' (the id is taken by another job) | 'unstaged' (its items have
--       gone from where they were staged); 'new' again to an attempt that comes again.
-- Holds: the pages of an id are those of the incarnation in its job's hash.
--@include ../../workers/store/clock.lua
--@include ../../workers/store/many.lua
--@include assigned.lua
local job, items, staged, jobs, unfinished, clock, outbox, pages, watch, assigned, board, kept =
  unpack(KEYS)
local given_ms, job_id, digest, grace_ms, staged_count, attempt = unpack(ARGV, 1, 6)
local fields = rest(ARGV, 7)
local known, state, submitter = unpack(redis.call('HMGET', job, 'digest', 'state', 'submitter'))
if known then
  redis.call('DEL', staged)
  if submitter == attempt then return 'new' end
  return known == digest and 'same' or 'other'
end
if redis.call('HLEN', staged) ~= tonumber(staged_count) then return 'unstaged' end
local created, now = wall_clock(given_ms), lease_clock(clock, given_ms)
if state == 'lost' then
  redis.call('DEL', job)
  redis.call('SREM', outbox, job_id)
end
for _, member in ipairs(redis.call('SMEMBERS', pages)) do  -- of an earlier job of this id, whose hash alone was lost
  local lane, incarnation, page = string.match(member, '^(%d+)|(%w+)%.(%d+)$')
  if lane then
    local place = incarnation .. ':' .. lane .. ':' .. page
    local assignments = job .. ':assignments:' .. place
    unassign_page(assignments, assigned)
    redis.call('DEL', job .. ':page:' .. place, assignments)
    redis.call('ZREM', watch, job_id .. '|' .. string.gsub(place, ':', '|'))
  end
end
redis.call('DEL', items, pages, board, kept)
redis.call('HSET', job, 'digest', digest, 'state', 'submitted', 'created_ms', created, 'submitter', attempt,
           unpack(fields))
if redis.call('EXISTS', staged) == 1 then
  redis.call('RENAME', staged, items)
  redis.call('PERSIST', items)
end
redis.call('ZADD', jobs, created, job_id)
redis.call('ZADD', unfinished, now + tonumber(grace_ms), job_id)
return 'new'
