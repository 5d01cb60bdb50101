#!lua
-- governor_override.lua: replace a pool's live overrides, unless somebody else did since they were read.
-- KEYS  1 overrides      ARGV  1 pool ('': for all pools)  2 JSON as it was read ('': none)  3 JSON ('': take them
--       back)
-- Reply 1, or 0 if the caller is too late.
local overrides = unpack(KEYS)
local pool, as_read, wanted = unpack(ARGV)
if (redis.call('HGET', overrides, pool) or '') ~= as_read then return 0 end
if wanted == '' then redis.call('HDEL', overrides, pool) else redis.call('HSET', overrides, pool, wanted) end
return 1
