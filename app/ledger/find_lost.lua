#!lua
-- find_lost.lua: of a page that has stood still since the last look, or whose planner died before it had sent all its
-- messages, the units that nobody living works on and no message will bring become due.
-- KEYS  1 page  2 due  3 clock
-- ARGV  1 now_ms  2 prefix of the members of due  3 prefix of the nodes' beacons  4 stride  5 1 if the page's queue is empty
--       6 ms that a claim may last
-- Reply -1 if the page is whole (gather it), else how many messages were found lost.
--@include clock.lua
--@include unit.lua
local now, page = lease_clock(KEYS[3], ARGV[1]), KEYS[1]
local left, seen, first, units = unpack(redis.call('HMGET', page, 'left', 'seen', 'first', 'units'))
if not left then return 0 end
if left == '0' then return -1 end
redis.call('HSET', page, 'seen', left)
local planner = redis.call('HGET', page, 'planner')
local orphaned = planner and redis.call('EXISTS', ARGV[3] .. planner) == 0
if left ~= seen and not orphaned then return 0 end
if orphaned then redis.call('HDEL', page, 'planner') end
local stride, nothing_waits, lost = tonumber(ARGV[4]), ARGV[5] == '1' or orphaned, 0

local function is_lost(position)
  if redis.call('HEXISTS', page, 'r:' .. position) == 1 then return false, false end
  local u = read_unit(page, position)
  if not u then return nothing_waits, true end
  if u.owner ~= '' then return not in_living_hands(u, ARGV[3], now, tonumber(ARGV[6])), false end
  return redis.call('ZSCORE', KEYS[2], ARGV[2] .. position) == false and
         redis.call('ZSCORE', KEYS[2], ARGV[2] .. 'b' .. (position - position % stride)) == false, false
end

for group = tonumber(first), tonumber(first) + tonumber(units) - 1, stride do
  local found, untouched = {}, 0
  for position = group, group + stride - 1 do
    local gone, fresh = is_lost(position)
    if gone then found[#found + 1] = position end
    if gone and fresh then untouched = untouched + 1 end
  end
  if stride > 1 and untouched == stride then found = {'b' .. group} end
  for _, token in ipairs(found) do
    lost = lost + redis.call('ZADD', KEYS[2], 'NX', now, ARGV[2] .. token)
  end
end
if lost > 0 then redis.call('HSET', page, 'unchorded', 1) end
return lost
