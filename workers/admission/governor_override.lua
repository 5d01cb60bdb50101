#!lua
-- governor_override.lua: replace a pool's live overrides, unless somebody else did since they were read.
-- KEYS  1 overrides      ARGV  1 pool ('': for all pools)  2 JSON as it was read ('': none)  3 JSON ('': take them back)
-- Reply 1, or 0 if the caller is too late.
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end
if ARGV[3] == '' then redis.call('HDEL', KEYS[1], ARGV[1]) else redis.call('HSET', KEYS[1], ARGV[1], ARGV[3]) end
return 1
