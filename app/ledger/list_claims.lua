#!lua flags=no-writes
-- list_claims.lua: the units of a page that a node has claimed and that have no result.
-- KEYS  1 page      ARGV  1 node
-- Reply {position, fence, position, fence, ...}
--@include unit.lua
local reply, first, units = {}, unpack(redis.call('HMGET', KEYS[1], 'first', 'units'))
for position = tonumber(first or 0), tonumber(first or 0) + tonumber(units or 0) - 1 do
  local u = read_unit(redis.call('HGET', KEYS[1], 'u:' .. position))
  if u and u.owner == ARGV[1] then
    reply[#reply + 1], reply[#reply + 2] = position, u.fence
  end
end
return reply
