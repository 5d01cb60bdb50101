#!lua flags=allow-oom
-- deregister.lua: give back every lease of a node that has left or is proven dead, and forget it.
-- KEYS  1 leases  2 holders  3 open  4 nodes  5 the node's beacon  6 epoch  7 heard  8 silent  9 registered  10 gone
--       11 their facts  12 orders
-- ARGV  1 node  2 freed channel  3 why it is gone, '' if it has left and nobody is to see it any more
-- Reply {lease given back, its holder, ...}.
-- Holds: the caller has proof of death; silence is none, for a frozen node's calls are open.
--@include ../admission/release.lua
--@include gone.lua
local leases, holders, open, nodes, beacon, epoch, heard, silent, registered, gone, gone_facts, orders = unpack(KEYS)
local node, freed_channel, why = unpack(ARGV)
local mine, cursor, entries = {}, '0', nil
repeat
  cursor, entries = unpack(redis.call('HSCAN', holders, cursor, 'COUNT', 1000))
  for i = 1, #entries, 2 do
    if holder_of(entries[i + 1]).node == node then mine[#mine + 1] = entries[i] end
  end
until cursor == '0'
local _, freed, records = release({leases = leases, holders = holders, open = open}, mine)
local is_removed = string.find(redis.call('HGET', orders, node) or '', '"kind":"remove"', 1, true)
if why == '' or is_removed then
  redis.call('HDEL', nodes, node)
  redis.call('HDEL', registered, node)
else
  note_gone(nodes, registered, gone, gone_facts, node, why)
end
redis.call('HDEL', orders, node)
redis.call('DEL', beacon)
redis.call('HDEL', epoch, 'told:' .. node)
redis.call('ZREM', heard, node)
redis.call('ZREM', silent, node)
if freed > 0 then redis.call('PUBLISH', freed_channel, '*') end
return records
