#!lua flags=allow-oom
-- stop_asking.lua: a job's unit ended without a score, by an error that asking again cannot help. If its first units at a
-- place (a pool's model) all end in the same error, the job asks there no more.
-- KEYS  1 the job's asking
-- ARGV  1 place  2 unit  3 its item  4 what makes the error the same  5 the stop, JSON  6 units that must have ended so
--       7 items that they must be of  8 retention s
-- Reply 1 if this unit stops the job there, however often it is told. Holds: a unit counts once; after one answer, or
--       two errors that differ, at a place the job is never stopped there.
local place, seen = ARGV[1], {units = {}, items = {}}
local answered, stopper, kept = unpack(redis.call('HMGET', KEYS[1], 'answered:' .. place, 'stopper:' .. place, 'failed:' .. place))
if stopper == ARGV[2] then return 1 end
if answered or stopper then return 0 end
if kept then seen = cjson.decode(kept) end

local function keep(...)
  redis.call('HSET', KEYS[1], ...)
  redis.call('EXPIRE', KEYS[1], ARGV[8])
end

local function size(set)
  local n = 0
  for _ in pairs(set) do n = n + 1 end
  return n
end

if seen.error and seen.error ~= ARGV[4] then
  keep('answered:' .. place, 'differently')
  redis.call('HDEL', KEYS[1], 'failed:' .. place)
  return 0
end
seen.error, seen.units[ARGV[2]], seen.items['i' .. ARGV[3]] = ARGV[4], 1, 1
if size(seen.units) < tonumber(ARGV[6]) or size(seen.items) < tonumber(ARGV[7]) then
  keep('failed:' .. place, cjson.encode(seen))
  return 0
end
keep('stopped:' .. place, ARGV[5], 'stopper:' .. place, ARGV[2])
redis.call('HDEL', KEYS[1], 'failed:' .. place)
return 1
