#!lua
-- take.lua: one request out of a bucket that holds so many and is filled again at a steady rate (a token bucket).
-- KEYS  1 bucket      ARGV  1 now_ms, or '' for the server's  2 capacity  3 comes back a second
-- Reply ms until one is there, 0 if it was taken; and whether this is the first refusal since one was.
-- By the wall clock: one that is put back only fills no bucket meanwhile.
--@include ../../workers/store/clock.lua
local bucket = unpack(KEYS)
local given_ms, capacity, per_s = unpack(ARGV)
capacity, per_s = tonumber(capacity), tonumber(per_s)
local now = wall_clock(given_ms)
local level, at, refused = unpack(redis.call('HMGET', bucket, 'level', 'at', 'refused'))
level, at = tonumber(level) or capacity, tonumber(at) or now
level = math.min(capacity, level + math.max(0, now - at) / 1000 * per_s)
local first = 0
if level >= 1 then
  level, refused = level - 1, '0'
else
  first, refused = refused == '1' and 0 or 1, '1'
end
local wait_ms = refused == '1' and math.ceil((1 - level) / per_s * 1000) or 0
redis.call('HSET', bucket, 'level', string.format('%.6f', level), 'at', now, 'refused', refused)
redis.call('PEXPIRE', bucket, math.ceil(capacity / per_s * 1000) + 1000)
return {wait_ms, first}
