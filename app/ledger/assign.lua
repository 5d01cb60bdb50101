#!lua
-- assign.lua: messages of a page chose a pool each; they count for it until somebody works on them (claim.lua).
-- KEYS  1 page  2 the page's assignments  3 assigned      ARGV  token, pool, token, pool, ...
-- Reply 1, or 0 if there is no such page any more. Holds: a pool's count = messages of open pages that stand for it.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local change = {}
for i = 1, #ARGV, 2 do
  local before = redis.call('HGET', KEYS[2], ARGV[i])
  if before then change[before] = (change[before] or 0) - 1 end
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
  change[ARGV[i + 1]] = (change[ARGV[i + 1]] or 0) + 1
end
for pool, by in pairs(change) do
  if by ~= 0 and redis.call('HINCRBY', KEYS[3], pool, by) <= 0 then redis.call('HDEL', KEYS[3], pool) end
end
return 1
