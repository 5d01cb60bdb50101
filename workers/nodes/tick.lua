#!lua flags=allow-oom
-- tick.lua: renew a node's beacon and end those of silent nodes, keep the lease clock going and end leases while nobody
-- asks for one, and compare what is known.
-- KEYS  1 clock  2 epoch  3 nodes  4 the node's beacon  5 leases  6 holders  7 open  8 heard  9 silent  10 registered
--       11 gone  12 their facts  13 orders
-- ARGV  1 now_ms ("" = the clock)  2 node  3 epoch it knows  4 grants it was told  5 grace ms  6 its facts, JSON
--       7 what the beacon tells, JSON  8 ms of silence that end a beacon  9 freed channel  10 prefix of the beacons
--       11 ms after which a beacon ends by itself
-- Reply {now_ms, epoch, grants that this node was told in it, the server's run id, {lease that is over, its
--       holder, ...}, the node's generation, its order or ''}
-- Silence is measured by the lease clock: keys that expire do so by the server's, which would silence every living node
-- when it is put ahead, and let the dead be heard when it is put back. They expire where nobody lives to tell.
-- A node that came back after FORGET_MS would be taken for proof that the store has lost grants: a pause, and no more.
--@include ../store/clock.lua
--@include ../store/epoch.lua
--@include ../admission/release.lua
--@include gone.lua
--@include registered.lua
local clock, epoch_key, nodes, beacon, leases, holders, open, heard, silent, registered, gone, gone_facts, orders =
  unpack(KEYS)
local given_ms, node, known_epoch, known_grants, grace_ms, facts, tells, silence_ms, freed_channel, beacons, beacon_ms =
  unpack(ARGV)
known_epoch, known_grants, grace_ms = tonumber(known_epoch), tonumber(known_grants), tonumber(grace_ms)
local FORGET_MS = 86400000
local now = lease_clock(clock, given_ms)

local epoch, _, server = store_epoch(epoch_key, given_ms, now, node, known_epoch, known_grants, grace_ms)
local generation = register(nodes, registered, gone, gone_facts, node, server)
redis.call('HSET', nodes, node, facts)
redis.call('SET', beacon, tells, 'PX', beacon_ms)
redis.call('ZADD', heard, now, node)
redis.call('ZREM', silent, node)
for _, other in ipairs(redis.call('ZRANGEBYSCORE', heard, '-inf', now - silence_ms, 'LIMIT', 0, 1000)) do
  redis.call('DEL', beacons .. other)
  redis.call('ZREM', heard, other)
  redis.call('ZADD', silent, now, other)
end

for _, other in ipairs(redis.call('ZRANGEBYSCORE', silent, '-inf', now - FORGET_MS, 'LIMIT', 0, 1000)) do
  redis.call('HDEL', epoch_key, 'told:' .. other)
  redis.call('ZREM', silent, other)
end
forget_gone(gone, gone_facts, orders, wall_clock(given_ms))

local freed, over = release_expired({leases = leases, holders = holders, open = open}, now)
if freed > 0 then redis.call('PUBLISH', freed_channel, '*') end
return {now, epoch, note_told(epoch_key, node, false), server, over, generation, redis.call('HGET', orders, node) or ''}
