#!lua flags=allow-oom
-- deregister.lua: give back every lease of a node that has left or is proven dead, and forget it.
-- KEYS  1 leases  2 holders  3 open  4 nodes  5 the node's beacon  6 epoch  7 heard  8 silent
-- ARGV  1 node  2 freed channel
-- Reply {lease given back, its holder, ...}.
-- Holds: the caller has proof of death; silence is none, for a frozen node's calls are open.
--@include ../admission/release.lua
local leases, holders, open, nodes, beacon, epoch, heard, silent = unpack(KEYS)
local node, freed_channel = unpack(ARGV)
local mine, cursor, entries = {}, '0', nil
repeat
  cursor, entries = unpack(redis.call('HSCAN', holders, cursor, 'COUNT', 1000))
  for i = 1, #entries, 2 do
    if holder_of(entries[i + 1]).node == node then mine[#mine + 1] = entries[i] end
  end
until cursor == '0'
local _, freed, records = release({leases = leases, holders = holders, open = open}, mine)
redis.call('HDEL', nodes, node)
redis.call('DEL', beacon)
redis.call('HDEL', epoch, 'told:' .. node)
redis.call('ZREM', heard, node)
redis.call('ZREM', silent, node)
if freed > 0 then redis.call('PUBLISH', freed_channel, '*') end
return records
