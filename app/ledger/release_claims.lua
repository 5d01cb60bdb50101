#!lua flags=allow-oom
-- release_claims.lua: claims whose end the store has lost. Their units are nobody's any more, but not given up: a call may have
-- been paid for. They become due; nobody has died of them.
-- KEYS  1 page  2 due  3 clock
-- ARGV  1 now_ms  2 prefix of the members of due  3 node  4... positions and fences of its claims
-- Reply how many of them are disowned now. Holds: a unit that has a result by now, or a newer claim, stays as it is.
--@include ../../workers/store/clock.lua
--@include unit.lua
local now, disowned, changed = lease_clock(KEYS[3], ARGV[1]), 0, false
for i = 4, #ARGV, 2 do
  local position, u = ARGV[i], read_unit(redis.call('HGET', KEYS[1], 'u:' .. ARGV[i]))
  if u and u.fence == tonumber(ARGV[i + 1]) then
    if u.owner == ARGV[3] then
      u.owner, changed = NOBODY, true
      write_unit(KEYS[1], position, u)
      redis.call('ZADD', KEYS[2], now, ARGV[2] .. position)
    end
    if u.owner == NOBODY then disowned = disowned + 1 end
  end
end
if changed then redis.call('HSET', KEYS[1], 'unchorded', 1) end
return disowned
