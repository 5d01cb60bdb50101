-- Who is told that a lane wants planning: one, and again if it asks again, until the planner has been there; another
-- when that one's node is not heard any more. Field planning:<lane> of the job, `told` = 'who node'.
local function was_told_to_plan(told, who)
  return who ~= '' and string.match(told or '', '^(%S+) ') == who
end

local function is_told_to_plan(job, lane, told, who, node, beacons)
  if was_told_to_plan(told, who) then return true end
  local holder = string.match(told or '', '^%S+ (%S+)$')
  if holder and redis.call('EXISTS', beacons .. holder) == 1 then return false end
  redis.call('HSET', job, 'planning:' .. lane, who .. ' ' .. node)
  return true
end
