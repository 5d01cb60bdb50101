#!lua flags=allow-oom
-- close_page.lua: a page whose results lie on disk, or are kept, is open no more; the last one ends the job's
-- work.
-- KEYS  1 job  2 page  3 pages  4 watch  5 the page's assignments  6 assigned  7 kept
-- ARGV  1 lane  2 incarnation.page  3 member of watch  4 lanes  5 node  6 prefix of the nodes' beacons
--       7 its results, to be kept in the store because no disk takes them, or '' for those that lie on disk
-- Reply {1 if the job is to be finished, 1 if the lane wants planning}; the same to who asks again. A page with open
-- units stays: who read its results read them from a server that knew more than this one. Its last result will have it
-- gathered again.
-- Holds: claims of the page that have not told their end are remembered in the job (late.lua).
--@include assigned.lua
--@include late.lua
--@include planning.lua
local job, page, pages, watch, assignments, assigned, kept = unpack(KEYS)
local lane, number, watch_member, lanes, node, beacons, results = unpack(ARGV)
if tonumber(redis.call('HGET', page, 'left') or 0) > 0 then
  redis.call('HSET', page, 'unchorded', 1)
  return {0, 0}
end
if results == '' then
  redis.call('HDEL', job, 'gather_tries', 'gather_ms', 'gather_since', 'gather_failer', 'gather_answer')
elseif redis.call('EXISTS', page) == 1 then  -- else it is closed: by this attempt before, or by who could write it
  redis.call('HSET', kept, lane .. '|' .. number, results)
end
unassign_page(assignments, assigned)
local late = redis.call('HGET', page, 'late')
if late then redis.call('HSET', job, late_of_page(lane, number), late) end
redis.call('DEL', page, assignments)
redis.call('SREM', pages, lane .. '|' .. number)
redis.call('ZREM', watch, watch_member)
local finish, plan = 0, 0
local state, cursor, low, open, told =
  unpack(redis.call('HMGET', job, 'state', 'cursor:' .. lane, 'low:' .. lane, 'open:' .. lane, 'planning:' .. lane))
if state == 'running' or state == 'cancelling' then
  finish = redis.call('SCARD', pages) == 0 and 1 or 0
  for other = 0, lanes - 1 do
    if redis.call('HGET', job, 'cursor:' .. other) ~= '' then finish = 0 end
  end
  if finish == 1 then
    redis.call('HSET', job, 'state', 'finishing', 'outcome', state == 'running' and 'completed' or 'cancelled')
  end
elseif state == 'finishing' then
  finish = 1
end
if state == 'running' and finish == 0 and cursor ~= '' and tonumber(open or 0) <= tonumber(low) and
   is_told_to_plan(job, lane, told, number .. '.closed', node, beacons) then plan = 1 end
return {finish, plan}
