#!lua flags=allow-oom
-- order.lua: what an operator wants of a node stands from now on, or no longer; the node is woken to read it.
-- KEYS  1 orders  2 holders  3 nodes  4 facts of those that are gone
-- ARGV  1 node  2 order, JSON, or '' to take it back  3 '' if a node that holds leases is to be left alone
--       4 channel that wakes nodes
-- Reply {the order that stands for the node then, or '', leases of its open calls, or -1 if nobody knows such a node}
-- Holds: an order that asks for the same as the one that stands, or for less, does not replace it; a removal is final.
--@include ../admission/holder.lua
local orders, holders, nodes, gone_facts = unpack(KEYS)
local node, order, although_busy, channel = unpack(ARGV)
if redis.call('HEXISTS', nodes, node) == 0 and redis.call('HEXISTS', gone_facts, node) == 0 then return {'', -1} end
local leases, cursor, entries = 0, '0', nil
repeat
  cursor, entries = unpack(redis.call('HSCAN', holders, cursor, 'COUNT', 1000))
  for i = 2, #entries, 2 do
    local holder = holder_of(entries[i])
    if holder.node == node and not holder.cut then leases = leases + 1 end
  end
until cursor == '0'

local standing = redis.call('HGET', orders, node) or ''
local before = standing ~= '' and cjson.decode(standing) or {}
if before.kind == 'remove' or (order ~= '' and although_busy == '' and leases > 0) then
  return {before.kind == 'remove' and standing or '', leases}
end
if order == '' then
  redis.call('HDEL', orders, node)
  standing = ''
else
  local wanted = cjson.decode(order)
  local is_less = wanted.kind == 'cordon' and before.kind == 'drain'
  if not is_less and (wanted.kind ~= before.kind or wanted.deadline_s ~= before.deadline_s) then
    redis.call('HSET', orders, node, order)
    standing = order
  end
end
redis.call('PUBLISH', channel, node)
return {standing, leases}
