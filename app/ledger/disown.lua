#!lua flags=allow-oom
-- disown.lua: claims whose end the store has lost. Their units are nobody's any more, as those of a dead node, and
-- become due.
-- KEYS  1 page  2 due  3 clock
-- ARGV  1 now_ms  2 prefix of the members of due  3 node  4... positions and fences of its claims
-- Reply how many. Holds: a unit that has a result by now, or a newer claim, stays as it is.
--@include clock.lua
--@include unit.lua
local NOBODY = '-'  -- not '': a call may have been paid for
local now, disowned = lease_clock(KEYS[3], ARGV[1]), 0
for i = 4, #ARGV, 2 do
  local position, u = ARGV[i], read_unit(KEYS[1], ARGV[i])
  if u and u.owner == ARGV[3] and u.fence == tonumber(ARGV[i + 1]) and
     redis.call('HEXISTS', KEYS[1], 'r:' .. position) == 0 then
    u.owner, disowned = NOBODY, disowned + 1
    write_unit(KEYS[1], position, u)
    redis.call('ZADD', KEYS[2], now, ARGV[2] .. position)
  end
end
if disowned > 0 then redis.call('HSET', KEYS[1], 'unchorded', 1) end
return disowned
