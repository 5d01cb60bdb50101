#!lua flags=allow-oom
-- dead_letter.lua: one message is set aside and counted, once however often this comes.
-- KEYS  1 counts by reason  2 what was set aside, newest first
-- ARGV  1 reason  2 entry, with a name of its own  3 most entries kept
-- Reply 1, or 0 if the entry is there already.
if redis.call('LPOS', KEYS[2], ARGV[2]) then return 0 end
redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
redis.call('LPUSH', KEYS[2], ARGV[2])
redis.call('LTRIM', KEYS[2], 0, tonumber(ARGV[3]) - 1)
return 1
