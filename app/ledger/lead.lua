#!lua flags=allow-oom
-- lead.lua: one at a time leads the housekeeping: a beat, or a node in its place when no beat has ticked for a while.
-- KEYS  1 beat  2 clock      ARGV  1 now_ms  2 node and attempt  3 ms  4 1 if a tick was taken, whoever led
-- Reply 1 if the node leads, for so long. By the lease clock, for a key that expires by the server's would keep a dead
-- beat's place for as long as that is put back. The same attempt again is answered as the first time.
--@include ../../workers/store/clock.lua
local beat, clock = unpack(KEYS)
local given_ms, candidate, for_ms, ticked = unpack(ARGV)
local now, leader = lease_clock(clock, given_ms), redis.call('GET', beat)
local until_ms = leader and tonumber(string.match(leader, '|(%d+)$')) or 0
if ticked ~= '1' and now < until_ms then return string.match(leader, '^[^|]*') == candidate and 1 or 0 end
redis.call('SET', beat, string.format('%s|%d', candidate, now + for_ms), 'PX', for_ms)
return 1
