#!lua flags=allow-oom
-- requeue.lua: unacknowledged messages of a node go back to the ends of their queues, each at most once however many
-- heirs it has.
-- KEYS  1 unacknowledged messages  2 their index      ARGV  1... delivery tag, queue, message
-- Reply how many
local restored = 0
for i = 1, #ARGV, 3 do
  if redis.call('HDEL', KEYS[1], ARGV[i]) == 1 then
    redis.call('ZREM', KEYS[2], ARGV[i])
    redis.call('LPUSH', ARGV[i + 1], ARGV[i + 2])
    restored = restored + 1
  end
end
return restored
