#!lua
-- extend_user.lua: put another record in a node's user's place, unless it has changed or is gone.
-- KEYS  1 store_users
-- ARGV  1 node  2 the record as it was  3 as it is to be
-- Reply 1; 0 if it was not so any more.
local users = unpack(KEYS)
local node, before, after = unpack(ARGV)
if redis.call('HGET', users, node) ~= before then return 0 end
redis.call('HSET', users, node, after)
return 1
