#!lua flags=allow-oom
-- deregister.lua: give back every lease of a node that has left or is proven dead, and forget it.
-- KEYS  1 leases  2 holders  3 open  4 nodes  5 the node's beacon  6 epoch  7 heard  8 silent
-- ARGV  1 node  2 freed channel
-- Reply {lease given back, its holder, ...}. Holds: the caller has proof of death; silence is none, for a frozen node's calls are open.
--@include ../admission/release.lua
local mine, cursor = {}, '0'
repeat
  local page = redis.call('HSCAN', KEYS[2], cursor, 'COUNT', 1000)
  cursor = page[1]
  for i = 1, #page[2], 2 do
    if string.match(page[2][i + 1], '^[^|]*|[^|]*|[^|]*|([^|]*)') == ARGV[1] then mine[#mine + 1] = page[2][i] end
  end
until cursor == '0'
local found, freed = release(KEYS[1], KEYS[2], KEYS[3], mine)
redis.call('HDEL', KEYS[4], ARGV[1])
redis.call('DEL', KEYS[5])
redis.call('HDEL', KEYS[6], 'told:' .. ARGV[1])
redis.call('ZREM', KEYS[7], ARGV[1])
redis.call('ZREM', KEYS[8], ARGV[1])
if freed > 0 then redis.call('PUBLISH', ARGV[2], '*') end
return told_of(found)
