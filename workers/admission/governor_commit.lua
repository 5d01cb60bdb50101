#!lua
-- governor_commit.lua: put a decision into force, unless another one was made since `expected`.
-- KEYS  1 governor  2 events  3 changes
-- ARGV  1 expected version  2 version  3 parameters JSON  4 next_at, s ('' none)  5 state JSON ('': the stored one
--       stays, and the events since then)  6 last entry that the state knows  7 most changes kept
--       8 freed channel ('': nobody need ask again)  9 pool  10... changes of the limit, JSON, oldest first
-- Reply 1, or 0 if the caller is too late. Holds: the stored state and the events kept after it lose nothing.
--@include ../store/many.lua
local governor, event_stream, changes = unpack(KEYS)
local expected, version, params, next_at, state, last_entry, changes_max, freed_channel, pool = unpack(ARGV, 1, 9)
local new_changes = rest(ARGV, 10)
if (redis.call('HGET', governor, 'version') or '0') ~= expected then return 0 end
redis.call('HSET', governor, 'version', version, 'parameters', params)
if next_at == '' then redis.call('HDEL', governor, 'next_at') else redis.call('HSET', governor, 'next_at', next_at) end
if state ~= '' then
  redis.call('HSET', governor, 'state', state, 'cursor', last_entry)
  redis.call('XTRIM', event_stream, 'MINID', last_entry)
end
for _, change in ipairs(new_changes) do redis.call('LPUSH', changes, change) end
redis.call('LTRIM', changes, 0, tonumber(changes_max) - 1)
if freed_channel ~= '' then redis.call('PUBLISH', freed_channel, pool) end
return 1
