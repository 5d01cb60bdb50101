#!lua
-- submit.lua: a job is in the ledger whole, or not at all.
-- KEYS  1 job  2 items  3 staged items  4 jobs  5 unfinished  6 clock  7 outbox  8 pages  9 watch
--       10 assigned
-- ARGV  1 now_ms  2 job id  3 digest  4 grace ms until the sweeper looks after it  5 how many items are staged
--       6 a name of this attempt  7... field, value of the job's hash
-- Reply 'new' | 'same' (this very job is there) | 'other' (the id is taken by another job) | 'unstaged' (its items have
--       gone from where they were staged); 'new' again to an attempt that comes again.
-- Holds: the pages of an id are those of the incarnation in its job's hash.
--@include ../../workers/store/clock.lua
local digest, state, submitter = unpack(redis.call('HMGET', KEYS[1], 'digest', 'state', 'submitter'))
if digest then
  redis.call('DEL', KEYS[3])
  if submitter == ARGV[6] then return 'new' end
  return digest == ARGV[3] and 'same' or 'other'
end
if redis.call('HLEN', KEYS[3]) ~= tonumber(ARGV[5]) then return 'unstaged' end
local created, now = wall_clock(ARGV[1]), lease_clock(KEYS[6], ARGV[1])
if state == 'lost' then
  redis.call('DEL', KEYS[1])
  redis.call('SREM', KEYS[7], ARGV[2])
end
for _, member in ipairs(redis.call('SMEMBERS', KEYS[8])) do  -- of an earlier job of this id, whose hash alone was lost
  local lane, incarnation, page = string.match(member, '^(%d+)|(%w+)%.(%d+)$')
  if lane then
    local place = incarnation .. ':' .. lane .. ':' .. page
    local assignments = KEYS[1] .. ':assignments:' .. place
    for _, pool in ipairs(redis.call('HVALS', assignments)) do
      if redis.call('HINCRBY', KEYS[10], pool, -1) <= 0 then redis.call('HDEL', KEYS[10], pool) end
    end
    redis.call('DEL', KEYS[1] .. ':page:' .. place, assignments)
    redis.call('ZREM', KEYS[9], ARGV[2] .. '|' .. string.gsub(place, ':', '|'))
  end
end
redis.call('DEL', KEYS[2], KEYS[8])
redis.call('HSET', KEYS[1], 'digest', ARGV[3], 'state', 'submitted', 'created_ms', created, 'submitter', ARGV[6], unpack(ARGV, 7))
if redis.call('EXISTS', KEYS[3]) == 1 then
  redis.call('RENAME', KEYS[3], KEYS[2])
  redis.call('PERSIST', KEYS[2])
end
redis.call('ZADD', KEYS[4], created, ARGV[2])
redis.call('ZADD', KEYS[5], now + tonumber(ARGV[4]), ARGV[2])
return 'new'
