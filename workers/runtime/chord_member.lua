#!lua flags=allow-oom
-- chord_member.lua: a chord gets one more member, once however often this comes.
-- KEYS  1 Celery's set of the chord's members that have ended  2 how many were added since the chord began
-- ARGV  1 task's id  2 s until the chord is forgotten, 0: never
-- Reply 1, or 0 if it is a member already. Celery's own entries of the set begin with a task's id.
local ended, added = unpack(KEYS)
local task, keep_s = unpack(ARGV)
if redis.call('SADD', ended, '+' .. task) == 0 then return 0 end
redis.call('INCR', added)
for _, key in ipairs({ended, added}) do
  if tonumber(keep_s) > 0 then redis.call('EXPIRE', key, keep_s) end
end
return 1
