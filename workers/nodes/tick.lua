#!lua flags=allow-oom
-- tick.lua: renew a node's beacon and end those of silent nodes, keep the lease clock going and end leases while nobody
-- asks for one, and compare what is known.
-- KEYS  1 clock  2 epoch  3 nodes  4 the node's beacon  5 leases  6 holders  7 open  8 heard  9 silent
-- ARGV  1 now_ms ("" = the clock)  2 node  3 epoch it knows  4 grants it was told  5 grace ms  6 its facts, JSON
--       7 what the beacon tells, JSON  8 ms of silence that end a beacon  9 freed channel  10 prefix of the beacons
--       11 ms after which a beacon ends by itself
-- Reply {now_ms, epoch, grants that this node was told in it, the server's run id, {lease that is over, its holder, ...}}
-- Silence is measured by the lease clock: keys that expire do so by the server's, which would silence every living node
-- when it is put ahead, and let the dead be heard when it is put back. They expire where nobody lives to tell.
-- A node that came back after FORGET_MS would be taken for proof that the store has lost grants: a pause, and no more.
--@include ../store/clock.lua
--@include ../store/epoch.lua
--@include ../admission/release.lua
local FORGET_MS = 86400000
local now = lease_clock(KEYS[1], ARGV[1])
redis.call('HSET', KEYS[3], ARGV[2], ARGV[6])
redis.call('SET', KEYS[4], ARGV[7], 'PX', ARGV[11])
redis.call('ZADD', KEYS[8], now, ARGV[2])
redis.call('ZREM', KEYS[9], ARGV[2])
for _, node in ipairs(redis.call('ZRANGEBYSCORE', KEYS[8], '-inf', now - ARGV[8], 'LIMIT', 0, 1000)) do
  redis.call('DEL', ARGV[10] .. node)
  redis.call('ZREM', KEYS[8], node)
  redis.call('ZADD', KEYS[9], now, node)
end
for _, node in ipairs(redis.call('ZRANGEBYSCORE', KEYS[9], '-inf', now - FORGET_MS, 'LIMIT', 0, 1000)) do
  redis.call('HDEL', KEYS[2], 'told:' .. node)
  redis.call('ZREM', KEYS[9], node)
end
local number, _, server = store_epoch(KEYS[2], ARGV[1], now, ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]),
                                      tonumber(ARGV[5]))
local expired = redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', now, 'LIMIT', 0, 1000)
local found, freed = release(KEYS[5], KEYS[6], KEYS[7], expired)
if freed > 0 then redis.call('PUBLISH', ARGV[9], '*') end
return {now, number, tonumber(redis.call('HGET', KEYS[2], 'told:' .. ARGV[2]) or 0), server, told_of(found)}
