#!lua flags=allow-oom
-- stop_asking.lua: a job's unit ended without a score, by an error that asking again cannot help. If its first units at
-- a place (a pool's model) all end in the same error, the job asks there no more.
-- KEYS  1 the job's asking
-- ARGV  1 place  2 unit  3 its item  4 what makes the error the same  5 the stop, JSON  6 units that must have ended so
--       7 items that they must be of  8 retention s
-- Reply 1 if this unit stops the job there, however often it is told. Holds: a unit counts once; after one answer, or
--       two errors that differ, at a place the job is never stopped there.
local asking = unpack(KEYS)
local place, unit, item, sameness, stop, units_min, items_min, keep_s = unpack(ARGV)
local answered, stopper, kept =
  unpack(redis.call('HMGET', asking, 'answered:' .. place, 'stopper:' .. place, 'failed:' .. place))
if stopper == unit then return 1 end
if answered or stopper then return 0 end
local seen = kept and cjson.decode(kept) or {units = {}, items = {}}

local function keep(...)
  redis.call('HSET', asking, ...)
  redis.call('EXPIRE', asking, keep_s)
end

local function size(set)
  local n = 0
  for _ in pairs(set) do n = n + 1 end
  return n
end

if seen.error and seen.error ~= sameness then
  keep('answered:' .. place, 'differently')
  redis.call('HDEL', asking, 'failed:' .. place)
  return 0
end
seen.error, seen.units[unit], seen.items['i' .. item] = sameness, 1, 1
if size(seen.units) < tonumber(units_min) or size(seen.items) < tonumber(items_min) then
  keep('failed:' .. place, cjson.encode(seen))
  return 0
end
keep('stopped:' .. place, stop, 'stopper:' .. place, unit)
redis.call('HDEL', asking, 'failed:' .. place)
return 1
