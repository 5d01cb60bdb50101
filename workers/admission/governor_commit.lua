#!lua
-- governor_commit.lua: put a decision into force, unless another one was made since `expected`.
-- KEYS  1 governor  2 events  3 changes
-- ARGV  1 expected version  2 version  3 parameters JSON  4 next_at, s ('' none)  5 state JSON ('': the stored one stays, and
--       the events since then)  6 last entry that the state knows  7 most changes kept
--       8 freed channel ('': nobody need ask again)  9 pool  10... changes of the limit, JSON, oldest first
-- Reply 1, or 0 if the caller is too late. Holds: the stored state and the events kept after it lose nothing.
if (redis.call('HGET', KEYS[1], 'version') or '0') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'parameters', ARGV[3])
if ARGV[4] == '' then redis.call('HDEL', KEYS[1], 'next_at') else redis.call('HSET', KEYS[1], 'next_at', ARGV[4]) end
if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[1], 'state', ARGV[5], 'cursor', ARGV[6])
  redis.call('XTRIM', KEYS[2], 'MINID', ARGV[6])
end
for i = 10, #ARGV do redis.call('LPUSH', KEYS[3], ARGV[i]) end
redis.call('LTRIM', KEYS[3], 0, tonumber(ARGV[7]) - 1)
if ARGV[8] ~= '' then redis.call('PUBLISH', ARGV[8], ARGV[9]) end
return 1
