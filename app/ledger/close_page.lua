#!lua flags=allow-oom
-- close_page.lua: a page whose results lie on disk leaves the store; the last one ends the job's work.
-- KEYS  1 job  2 page  3 pages  4 watch  5 the page's assignments  6 assigned
-- ARGV  1 lane  2 incarnation.page  3 member of watch  4 lanes  5 node  6 prefix of the nodes' beacons
-- Reply {1 if the job is to be finished, 1 if the lane wants planning}; the same to who asks again.
-- Holds: claims of the page that have not told their end are remembered in the job (see unit.lua).
--@include planning.lua
local lane = ARGV[1]
for _, pool in ipairs(redis.call('HVALS', KEYS[5])) do
  if redis.call('HINCRBY', KEYS[6], pool, -1) <= 0 then redis.call('HDEL', KEYS[6], pool) end
end
local late = redis.call('HGET', KEYS[2], 'late')
if late then redis.call('HSET', KEYS[1], 'late:' .. lane .. '|' .. ARGV[2], late) end
redis.call('DEL', KEYS[2], KEYS[5])
redis.call('SREM', KEYS[3], lane .. '|' .. ARGV[2])
redis.call('ZREM', KEYS[4], ARGV[3])
local finish, plan = 0, 0
local state, cursor, low, open, told = unpack(redis.call('HMGET', KEYS[1], 'state', 'cursor:' .. lane, 'low:' .. lane,
  'open:' .. lane, 'planning:' .. lane))
if state == 'running' or state == 'cancelling' then
  finish = redis.call('SCARD', KEYS[3]) == 0 and 1 or 0
  for l = 0, ARGV[4] - 1 do
    if redis.call('HGET', KEYS[1], 'cursor:' .. l) ~= '' then finish = 0 end
  end
  if finish == 1 then
    redis.call('HSET', KEYS[1], 'state', 'finishing', 'outcome', state == 'running' and 'completed' or 'cancelled')
  end
elseif state == 'finishing' then
  finish = 1
end
if state == 'running' and finish == 0 and cursor ~= '' and tonumber(open or 0) <= tonumber(low) and
   is_told_to_plan(KEYS[1], lane, told, ARGV[2] .. '.closed', ARGV[5], ARGV[6]) then plan = 1 end
return {finish, plan}
