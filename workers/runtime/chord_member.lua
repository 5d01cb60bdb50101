#!lua flags=allow-oom
-- chord_member.lua: a chord gets one more member, once however often this comes.
-- KEYS  1 Celery's set of the chord's members that have ended  2 how many were added since the chord began
-- ARGV  1 task's id  2 s until the chord is forgotten, 0: never
-- Reply 1, or 0 if it is a member already. Celery's own entries of the set begin with a task's id.
if redis.call('SADD', KEYS[1], '+' .. ARGV[1]) == 0 then return 0 end
redis.call('INCR', KEYS[2])
for _, key in ipairs(KEYS) do
  if tonumber(ARGV[2]) > 0 then redis.call('EXPIRE', key, ARGV[2]) end
end
return 1
