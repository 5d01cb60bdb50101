#!lua
-- displace_lines.lua: put a shorter list in the place of the audit log's first entries, if they are as they were read.
-- KEYS  1 audit  2 audit_head  3 audit_shorter
-- ARGV  1 lines displaced before, ever  2 entries that the shorter list stands for  3 lines displaced with it, ever
-- Reply 1; 0 if others have displaced lines meanwhile, or either list is not there.
-- Holds: lines that were added meanwhile follow in their order.
--@include ../../workers/store/many.lua
local audit, head, shorter = unpack(KEYS)
local before, entries, displaced = unpack(ARGV)
if (redis.call('HGET', head, 'displaced') or '0') ~= before then return 0 end
if redis.call('LLEN', audit) < tonumber(entries) or redis.call('EXISTS', shorter) == 0 then return 0 end
local added = redis.call('LRANGE', audit, entries, -1)
if #added > 0 then change_many('RPUSH', shorter, added) end
redis.call('RENAME', shorter, audit)
redis.call('PERSIST', audit)
redis.call('HSET', head, 'displaced', displaced)
return 1
