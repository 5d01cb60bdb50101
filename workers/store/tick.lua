#!lua flags=allow-oom
-- tick.lua: renew a node's beacon, keep the lease clock going and end leases while nobody asks for one, and compare
-- what is known.
-- KEYS  1 clock  2 epoch  3 nodes  4 the node's beacon  5 leases  6 holders  7 open
-- ARGV  1 now_ms ("" = the clock)  2 node  3 epoch it knows  4 grants it was told  5 grace ms  6 its facts, JSON
--       7 what the beacon tells, JSON  8 ms that it lasts  9 freed channel
-- Reply {now_ms, epoch, grants that this node was told in it, the server's run id}
--@include clock.lua
--@include epoch.lua
--@include release.lua
local now = lease_clock(KEYS[1], ARGV[1])
redis.call('HSET', KEYS[3], ARGV[2], ARGV[6])
redis.call('SET', KEYS[4], ARGV[7], 'PX', ARGV[8])
local number, _, server = store_epoch(KEYS[2], ARGV[1], now, ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]),
                                      tonumber(ARGV[5]))
local expired = redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', now, 'LIMIT', 0, 1000)
local _, freed = release(KEYS[5], KEYS[6], KEYS[7], expired)
if freed > 0 then redis.call('PUBLISH', ARGV[9], '*') end
return {now, number, tonumber(redis.call('HGET', KEYS[2], 'told:' .. ARGV[2]) or 0), server}
