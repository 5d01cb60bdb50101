#!lua
-- open_page.lua: the next page of a lane exists before its messages do; of two planners one wins.
-- KEYS  1 job  2 page  3 pages  4 watch  5 clock  6 epoch
-- ARGV  1 now_ms  2 lane  3 page  4 units  5 next cursor ('' at the lane's end)  6 member of watch  7 watch ms
--       8 low water: units open at which the lane is planned again
--       9 units whose results are among the fields  10 a name of this attempt  11 incarnation
--       12 how many of these results have no score  13... further fields: first, i:<item>, r:<position>
-- Reply units now open in the lane, or -1: another planner was first, or the job does not run, or is another one of this
--       id. The same attempt again, since its answer was lost, is answered as the first time.
--@include ../../workers/store/clock.lua
local now, lane = lease_clock(KEYS[5], ARGV[1]), ARGV[2]
if redis.call('HGET', KEYS[2], 'attempt') == ARGV[10] then
  return tonumber(redis.call('HGET', KEYS[1], 'open:' .. lane))
end
local state, incarnation = unpack(redis.call('HMGET', KEYS[1], 'state', 'incarnation'))
if state ~= 'running' or incarnation ~= ARGV[11] then return -1 end
if (redis.call('HGET', KEYS[1], 'page:' .. lane) or '0') ~= ARGV[3] then return -1 end
redis.call('HSET', KEYS[1], 'page:' .. lane, ARGV[3] + 1, 'cursor:' .. lane, ARGV[5], 'low:' .. lane, ARGV[8])
local left = ARGV[4] - ARGV[9]
local open = redis.call('HINCRBY', KEYS[1], 'open:' .. lane, left)
redis.call('HINCRBY', KEYS[1], 'done', ARGV[9])
redis.call('HINCRBY', KEYS[1], 'scored', ARGV[9] - ARGV[12])
redis.call('HINCRBY', KEYS[1], 'failed', ARGV[12])
redis.call('HINCRBY', KEYS[1], 'published', ARGV[4])
redis.call('HSET', KEYS[2], 'left', left, 'units', ARGV[4], 'opened_ms', now, 'attempt', ARGV[10])
local epoch = redis.call('HGET', KEYS[6], 'number')
if epoch then redis.call('HSET', KEYS[2], 'epoch', epoch) end
for i = 13, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
redis.call('SADD', KEYS[3], lane .. '|' .. ARGV[11] .. '.' .. ARGV[3])
redis.call('ZADD', KEYS[4], now + tonumber(ARGV[7]), ARGV[6])
return open
