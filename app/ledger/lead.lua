#!lua flags=allow-oom
-- lead.lua: one at a time leads the housekeeping: a beat, or a node in its place when no beat has ticked for a while.
-- KEYS  1 beat  2 clock      ARGV  1 now_ms  2 node and attempt  3 ms  4 1 if a tick was taken, whoever led
-- Reply 1 if the node leads, for so long. By the lease clock, for a key that expires by the server's would keep a dead
-- beat's place for as long as that is put back. The same attempt again is answered as the first time.
--@include ../../workers/store/clock.lua
local now, leader = lease_clock(KEYS[2], ARGV[1]), redis.call('GET', KEYS[1])
local until_ms = leader and tonumber(string.match(leader, '|(%d+)$')) or 0
if ARGV[4] ~= '1' and now < until_ms then return string.match(leader, '^[^|]*') == ARGV[2] and 1 or 0 end
redis.call('SET', KEYS[1], string.format('%s|%d', ARGV[2], now + ARGV[3]), 'PX', ARGV[3])
return 1
