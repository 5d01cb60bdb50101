#!lua
-- governor_read.lua: everything one decision of a pool needs.
-- KEYS  1 clock  2 governor  3 events  4 job_limits  5 overrides      ARGV  1 now_ms  2 pool  3 known version, 4 and the last entry that its owner has read  5 most entries
-- Reply {now_ms, version, state ('' if the caller knows this version), parameters, largest frozen limit (0: no job runs),
--        override, override for all pools, last entry read, {events, ...}}
--@include ../store/clock.lua
local now_ms = lease_clock(KEYS[1], ARGV[1])
local stored = redis.call('HMGET', KEYS[2], 'version', 'cursor', 'parameters')
local version, cursor = stored[1] or '0', stored[2] or '0-0'
local state = ''
if version == ARGV[3] then cursor = ARGV[4] else state = redis.call('HGET', KEYS[2], 'state') or '' end
local cap, events = 0, {}
for _, limit in ipairs(redis.call('HVALS', KEYS[4])) do cap = math.max(cap, tonumber(limit)) end
for _, entry in ipairs(redis.call('XRANGE', KEYS[3], '(' .. cursor, '+', 'COUNT', ARGV[5])) do
  cursor = entry[1]
  events[#events + 1] = entry[2][2]
end
local overrides = redis.call('HMGET', KEYS[5], ARGV[2], '')
return {now_ms, version, state, stored[3] or '', cap, overrides[1] or '', overrides[2] or '', cursor, events}
