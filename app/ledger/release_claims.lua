#!lua flags=allow-oom
-- release_claims.lua: claims whose end the store has lost. Their units are nobody's any more, but not given up: a call
-- may have been paid for. They become due; nobody has died of them.
-- KEYS  1 page  2 due  3 clock
-- ARGV  1 now_ms  2 prefix of the members of due  3 node  4... positions and fences of its claims
-- Reply how many of them are disowned now. Holds: a unit that has a result by now, or a newer claim, stays as it is.
--@include ../../workers/store/clock.lua
--@include ../../workers/store/many.lua
--@include unit.lua
local page, due, clock = unpack(KEYS)
local given_ms, due_prefix, node = unpack(ARGV, 1, 3)
local claims = rest(ARGV, 4)
local now, released, changed = lease_clock(clock, given_ms), 0, false
for i = 1, #claims, 2 do
  local position, fence = claims[i], tonumber(claims[i + 1])
  local u = read_unit(redis.call('HGET', page, 'u:' .. position))
  if u and u.fence == fence then
    if u.owner == node then
      u.owner, changed = NOBODY, true
      write_unit(page, position, u)
      redis.call('ZADD', due, now, due_prefix .. position)
    end
    if u.owner == NOBODY then released = released + 1 end
  end
end
if changed then redis.call('HSET', page, 'unchorded', 1) end
return released
