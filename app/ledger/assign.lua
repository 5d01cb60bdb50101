#!lua
-- assign.lua: messages of a page chose a pool each; they count for it until somebody works on them (claim.lua).
-- KEYS  1 page  2 the page's assignments  3 assigned      ARGV  1... token, pool, token, pool, ...
-- Reply 1, or 0 if there is no such page any more. Holds: a pool's count = messages of open pages that stand for it.
--@include ../../workers/store/many.lua
--@include assigned.lua
local page, assignments, assigned = unpack(KEYS)
local chosen = rest(ARGV, 1)
if redis.call('EXISTS', page) == 0 then return 0 end
local change = {}
for i = 1, #chosen, 2 do
  local token, pool = chosen[i], chosen[i + 1]
  local before = redis.call('HGET', assignments, token)
  if before then change[before] = (change[before] or 0) - 1 end
  redis.call('HSET', assignments, token, pool)
  change[pool] = (change[pool] or 0) + 1
end
for pool, by in pairs(change) do count_assigned(assigned, pool, by) end
return 1
