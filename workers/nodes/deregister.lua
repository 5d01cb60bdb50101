#!lua flags=allow-oom
-- deregister.lua: give back the leases of a node that has left or is proven dead, and forget it. Its connections are
-- closed: leases of pools whose providers go on working all the same count until their deadlines.
-- KEYS  1 leases  2 holders  3 open  4 nodes  5 the node's beacon  6 epoch  7 heard  8 silent  9 registered  10 gone
--       11 their facts  12 orders
-- ARGV  1 node  2 freed channel  3 why it is gone, '' if it has left and nobody is to see it any more
-- Reply {{lease given back, its holder, ...}, how many count on}.
-- Holds: the caller has proof of death; silence is none, for a frozen node's calls are open.
--@include ../admission/release.lua
--@include gone.lua
local leases, holders, open, nodes, beacon, epoch, heard, silent, registered, gone, gone_facts, orders = unpack(KEYS)
local node, freed_channel, why = unpack(ARGV)
local mine, cut, further_ms, cursor, entries = {}, {}, {}, '0', nil
repeat
  cursor, entries = unpack(redis.call('HSCAN', holders, cursor, 'COUNT', 1000))
  for i = 1, #entries, 2 do
    local holder = holder_of(entries[i + 1])
    if holder.node == node and holder.cut_frees == false then
      cut[#cut + 1], further_ms[entries[i]] = entries[i], 0
    elseif holder.node == node then
      mine[#mine + 1] = entries[i]
    end
  end
until cursor == '0'
local books = {leases = leases, holders = holders, open = open}
local _, freed, records = release(books, mine)
keep_cut(books, cut, further_ms, 0)
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
return {records, #cut}
