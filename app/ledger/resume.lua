#!lua
-- resume.lua: an ended job is as it was submitted, except for what it has cost; what has a score is kept in its files.
-- KEYS  1 job  2 unfinished  3 clock
-- ARGV  1 now_ms  2 job id  3 lanes  4 grace ms until the sweeper looks after it  5 a name of this attempt
-- Reply its state before; nothing changes unless that is completed or cancelled. The same to who asks again.
--@include ../../workers/store/clock.lua
local state, resumer = unpack(redis.call('HMGET', KEYS[1], 'state', 'resumer'))
local before = string.match(resumer or '', '^(%a+) ' .. ARGV[5] .. '$')
if before then return before end
if state ~= 'completed' and state ~= 'cancelled' then return state or '' end
local now = lease_clock(KEYS[3], ARGV[1])
redis.call('HDEL', KEYS[1], 'report', 'revoked', 'expires_ms', 'outcome', 'finisher', 'started_ms', 'finished_ms', 'published', 'done', 'scored',
           'failed')
for l = 0, ARGV[3] - 1 do
  -- Pages are counted on: the names of their messages and chords never come twice.
  for _, field in ipairs({'cursor:', 'open:', 'low:', 'planning:'}) do redis.call('HDEL', KEYS[1], field .. l) end
end
redis.call('HSET', KEYS[1], 'state', 'submitted', 'resumer', state .. ' ' .. ARGV[5])
redis.call('HINCRBY', KEYS[1], 'resumed', 1)
redis.call('PERSIST', KEYS[1])
redis.call('ZADD', KEYS[2], now + tonumber(ARGV[4]), ARGV[2])
return state
