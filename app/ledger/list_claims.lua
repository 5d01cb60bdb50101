#!lua flags=no-writes
-- list_claims.lua: the units of a page that a node has claimed and that have no result.
-- KEYS  1 page      ARGV  1 node
-- Reply {position, fence, position, fence, ...}
--@include unit.lua
local page = unpack(KEYS)
local node = unpack(ARGV)
local reply, first, units = {}, unpack(redis.call('HMGET', page, 'first', 'units'))
for position = tonumber(first or 0), tonumber(first or 0) + tonumber(units or 0) - 1 do
  local u = read_unit(redis.call('HGET', page, 'u:' .. position))
  if u and u.owner == node then
    reply[#reply + 1], reply[#reply + 2] = position, u.fence
  end
end
return reply
