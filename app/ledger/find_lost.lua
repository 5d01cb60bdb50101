#!lua
-- find_lost.lua: of a page that has stood still since the last look, or whose planner died before it had sent all its
-- messages, the units that nobody living works on and no message will bring become due.
-- KEYS  1 page  2 due  3 clock  4... queues in which its messages may wait, if the store is the broker
-- ARGV  1 now_ms  2 prefix of the members of due  3 prefix of the nodes' beacons  4 stride
--       5 1 if the page's queue is empty  6 ms that a claim may last  7 prefix of the page keys
--       8 a name of this attempt
-- Reply -1 if the page is whole (gather it), else how many messages were found lost; the same to an attempt that comes
-- again, which is no second look.
--@include ../../workers/store/clock.lua
--@include ../../workers/store/many.lua
--@include unit.lua
local page, due, clock = unpack(KEYS, 1, 3)
local queues = rest(KEYS, 4)
local given_ms, due_prefix, beacons, stride, queue_empty, claim_ms, jobs_prefix, attempt = unpack(ARGV)
stride, queue_empty, claim_ms = tonumber(stride), queue_empty == '1', tonumber(claim_ms)

local now = lease_clock(clock, given_ms)
local left, seen, first, units, planner, opened, again =
  unpack(redis.call('HMGET', page, 'left', 'seen', 'first', 'units', 'planner', 'opened_ms', 'again_ms'))
if not left then return 0 end
if left == '0' then return -1 end
local left_then, attempt_then, found_then = string.match(seen or '', '^(%d+) (%S+) (%d+)$')
if attempt_then == attempt then return tonumber(found_then) end
redis.call('HSET', page, 'seen', left .. ' ' .. attempt .. ' 0')
local orphaned = planner and redis.call('EXISTS', beacons .. planner) == 0
if left ~= left_then and not orphaned then return 0 end
if orphaned then redis.call('HDEL', page, 'planner') end

-- When the page that a message is of was opened, by its header `dicast`; nil if it is of no open page.
local function opened_of(raw)
  local is_json, message = pcall(cjson.decode, raw)
  local headers = is_json and type(message) == 'table' and message.headers
  local unit = type(headers) == 'table' and headers.dicast
  if type(unit) ~= 'table' or type(unit.job) ~= 'string' or type(unit.page) ~= 'string' then return nil end
  return tonumber(redis.call('HGET', jobs_prefix .. unit.job .. ':page:' .. unit.page, 'opened_ms') or nil)
end

-- Queues are first in, first out: if what comes next is of pages that were opened later, nothing of this page waits.
-- But what was put back stands behind, and what a gate holds is in no queue: these come twice, so never again before
-- the page is twice as old.
local function turn_has_passed()
  if now < tonumber(again or 0) then return false end
  local later = false
  for _, queue in ipairs(queues) do
    local raw = redis.call('LINDEX', queue, -1)
    if raw then
      local other = opened_of(raw)
      if not other or other <= tonumber(opened) then return false end
      later = true
    end
  end
  return later
end

local passed = not queue_empty and not orphaned and turn_has_passed()
local nothing_waits = queue_empty or orphaned or passed
if passed then redis.call('HSET', page, 'again_ms', 2 * now - opened) end

-- Whether a unit's message is lost, and whether it was never claimed.
local function is_lost(position)
  local u = read_unit(redis.call('HGET', page, 'u:' .. position))
  if not u and redis.call('HEXISTS', page, 'r:' .. position) == 1 then return false, false end
  if not u then return nothing_waits, true end
  if u.owner ~= '' then return not in_living_hands(u, beacons, now, claim_ms), false end
  return redis.call('ZSCORE', due, due_prefix .. position) == false and
         redis.call('ZSCORE', due, due_prefix .. 'b' .. (position - position % stride)) == false, false
end

local lost = 0
for group = tonumber(first), tonumber(first) + tonumber(units) - 1, stride do
  local found, untouched = {}, 0
  for position = group, group + stride - 1 do
    local gone, fresh = is_lost(position)
    if gone then found[#found + 1] = position end
    if gone and fresh then untouched = untouched + 1 end
  end
  if stride > 1 and untouched == stride then found = {'b' .. group} end
  for _, token in ipairs(found) do
    lost = lost + redis.call('ZADD', due, 'NX', now, due_prefix .. token)
  end
end
if lost > 0 then redis.call('HSET', page, 'unchorded', 1, 'seen', left .. ' ' .. attempt .. ' ' .. lost) end
return lost
