#!lua flags=allow-oom
-- dead_letter.lua: one message is set aside and counted, once however often this comes.
-- KEYS  1 counts by reason  2 what was set aside, newest first
-- ARGV  1 reason  2 entry, with a name of its own  3 most entries kept
-- Reply 1, or 0 if the entry is there already.
local counts, set_aside = unpack(KEYS)
local reason, entry, most = unpack(ARGV)
if redis.call('LPOS', set_aside, entry) then return 0 end
redis.call('HINCRBY', counts, reason, 1)
redis.call('LPUSH', set_aside, entry)
redis.call('LTRIM', set_aside, 0, tonumber(most) - 1)
return 1
