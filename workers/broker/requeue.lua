#!lua flags=allow-oom
-- requeue.lua: unacknowledged messages of a node go back to the ends of their queues, each at most once however many
-- heirs it has.
-- KEYS  1 unacknowledged messages  2 their index      ARGV  1... delivery tag, queue, message
-- Reply how many
--@include ../store/many.lua
local unacked, index = unpack(KEYS)
local moves = rest(ARGV, 1)
local restored = 0
for i = 1, #moves, 3 do
  local tag, queue, message = unpack(moves, i, i + 2)
  if redis.call('HDEL', unacked, tag) == 1 then
    redis.call('ZREM', index, tag)
    redis.call('LPUSH', queue, message)
    restored = restored + 1
  end
end
return restored
