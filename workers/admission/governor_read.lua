#!lua
-- governor_read.lua: everything one decision of a pool needs.
-- KEYS  1 clock  2 governor  3 events  4 job_limits  5 overrides
-- ARGV  1 now_ms  2 pool  3 known version, 4 and the last entry that its owner has read  5 most entries
-- Reply {now_ms, version, state ('' if the caller knows this version), parameters, largest frozen limit (0: no job
--        runs), override, override for all pools, last entry read, refusals counted so far, {events, ...}}
--@include ../store/clock.lua
--@include slots.lua
local clock, governor, event_stream, job_limits, overrides = unpack(KEYS)
local given_ms, pool, known_version, known_entry, entries_max = unpack(ARGV)
local version, cursor, params, enforcement =
  unpack(redis.call('HMGET', governor, 'version', 'cursor', 'parameters', 'enforcement'))
local state, events = '', {}
version, cursor = version or '0', cursor or '0-0'
if version == known_version then cursor = known_entry else state = redis.call('HGET', governor, 'state') or '' end
for _, entry in ipairs(redis.call('XRANGE', event_stream, '(' .. cursor, '+', 'COUNT', entries_max)) do
  cursor = entry[1]
  events[#events + 1] = entry[2][2]
end
local override, override_for_all = unpack(redis.call('HMGET', overrides, pool, ''))
return {lease_clock(clock, given_ms), version, state, params or '', all_slots(job_limits), override or '',
        override_for_all or '', cursor, enforcement and cmsgpack.unpack(enforcement).refusals or 0, events}
