#!lua flags=allow-oom
-- trim_audit.lua: drop the oldest lines of the audit log; the last one's hash stays, from which the others are checked.
-- KEYS  1 audit  2 audit_head
-- ARGV  1 lines dropped before, ever  2 lines to drop now  3 hash of the last of them  4 seal of that anchor
-- Reply 1; 0 if others have dropped lines meanwhile.
local audit, head = unpack(KEYS)
local before, drop, anchor, seal = unpack(ARGV)
local trimmed = redis.call('HGET', head, 'trimmed') or '0'
if trimmed ~= before or redis.call('LLEN', audit) < tonumber(drop) then return 0 end
redis.call('LTRIM', audit, drop, -1)
local now_trimmed = string.format('%d', before + drop)
redis.call('HSET', head, 'trimmed', now_trimmed, 'anchor', anchor, 'anchor_seal', seal)
return 1
