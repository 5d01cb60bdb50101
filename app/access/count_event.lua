#!lua flags=allow-oom
-- count_event.lua: whether something gets a line of its own in the audit log; else it is counted, for its minute's sum.
-- KEYS  1 audit_counts
-- ARGV  1 now, unix s, '' for the server's  2 part  3 group  4 kind  5 what lines are counted by: a kind, or '' for all
--       of the group  6 most lines of that a minute  7 most lines of the part a minute  8 most counts of it a minute
--       9 the group of what comes when there are so many
-- Reply {1 if it gets a line, else 0; 1 if this is another minute than the last time}.
-- Holds: of a minute, lines and counts together are exactly the calls; the hash is bounded whatever groups there are.
local counts = unpack(KEYS)
local given, part, group, kind, line_kind, group_lines, part_lines, most, rest = unpack(ARGV)
local now = given ~= '' and tonumber(given) or tonumber(redis.call('TIME')[1])
local minute = string.format('%d', math.floor(now / 60))
local function field(...) return table.concat({minute, part, ...}, '\0') end
local function value(name) return tonumber(redis.call('HGET', counts, name) or 0) end

local last = redis.call('HGET', counts, 'minute')
redis.call('HSET', counts, 'minute', minute)
local is_new = (last and last ~= minute) and 1 or 0

local own, all, size = field(group, line_kind, 'lines'), field('', '', 'lines'), field('', '', 'size')
if value(own) < tonumber(group_lines) and value(all) < tonumber(part_lines) then
  redis.call('HINCRBY', counts, own, 1)
  redis.call('HINCRBY', counts, all, 1)
  return {1, is_new}
end
local name = field(group, kind, 'count')
if value(name) == 0 then
  if value(size) >= tonumber(most) then
    name = field(rest, kind, 'count')
  else
    redis.call('HINCRBY', counts, size, 1)
  end
end
redis.call('HINCRBY', counts, name, 1)
return {0, is_new}
