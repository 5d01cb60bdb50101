#!lua flags=allow-oom
-- append_line.lua: add a line to the audit log, if the one that it was made to follow is the last one still.
-- KEYS  1 audit  2 audit_head  3 audit_counts
-- ARGV  1 lines before it, ever  2 the line before's hash  3 the line  4 its hash  5 seal of the new head
--       6... of the counts that the line sums up, each one's field and its value
-- Reply lines held now; 0 if another line came first: it is to be made anew; -1 if the counts are others by now.
-- Holds: lines are in the order of their numbers, without a gap, whoever appends; a count is summed up in one line.
--@include ../../workers/store/many.lua
local audit, head, counts = unpack(KEYS)
local before, previous, line, hash, seal = unpack(ARGV, 1, 5)
local sums = rest(ARGV, 6)
for at = 1, #sums, 2 do
  if redis.call('HGET', counts, sums[at]) ~= sums[at + 1] then return -1 end
end
local count, last = unpack(redis.call('HMGET', head, 'count', 'hash'))
if (count or '0') ~= before or (last or '') ~= previous then return 0 end
local held = redis.call('RPUSH', audit, line)
redis.call('HSET', head, 'count', string.format('%d', before + 1), 'hash', hash, 'seal', seal)
for at = 1, #sums, 2 do
  redis.call('HDEL', counts, sums[at])
end
return held
