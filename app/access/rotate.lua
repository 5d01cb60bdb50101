#!lua
-- rotate.lua: the next number's key signs from now on; the one before is accepted until its overlap ends.
-- KEYS  1 signing
-- ARGV  1 now, unix s  2 unix s until when the older key is accepted
-- Reply the new number.
-- Holds: of two rotations at once each makes a key of its own; a number whose time is over is forgotten.
local signing = unpack(KEYS)
local now, accepted_until = unpack(ARGV)
local number = tonumber(redis.call('HGET', signing, 'current') or '1')
for _, field in ipairs(redis.call('HKEYS', signing)) do
  if field ~= 'current' and tonumber(redis.call('HGET', signing, field)) < tonumber(now) then
    redis.call('HDEL', signing, field)
  end
end
redis.call('HSET', signing, string.format('%d', number), accepted_until, 'current', string.format('%d', number + 1))
return number + 1
