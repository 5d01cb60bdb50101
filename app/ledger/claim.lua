#!lua
-- claim.lua: the work claim. Who may work on these units of a page now?
-- KEYS  1 job  2 page  3 due  4 clock  5 the page's assignments  6 assigned  7 epoch
-- ARGV  1 now_ms  2 node  3 prefix of the nodes' beacons  4 token of the message  5 its member of due
--       6 deaths that quarantine  7 ms that a claim may last  8 item field  9 most calls of a unit
--       10 a name of this attempt  11 ms until the message comes again if others own a unit, or ''
--       12 1 if a unit that waits for its time is claimed all the same  13... positions
-- Reply {job state, item, {verdict, fence, attempts, requeues, calls, ms since the first claim, ms until its deadline or
--       -1}, ...}; verdict: run | done | owned | waiting | cancelled | revoked | poison | spent (no more calls are paid
--       for) | unknown (a call may have been paid, and the job pays for no second one) | expired (its deadline has
--       passed). Job state '' when there is no such page any more, or no such position in it; 'unheard' while the
--       claimer's own beacon cannot be heard: others would take at once what it claims.
-- Holds: of all claims of a unit only that with the newest fence can write a result. A fence is an epoch plus
--       the claims since, so that none comes twice, not even after a flush. A claim lasts as long as its owner's beacon,
--       and at most as long as a call may; after that the unit is free for the next, and a death is counted against it.
--       An attempt that comes again is answered as the first time and changes nothing.
--@include ../../workers/store/clock.lua
--@include ../../workers/store/many.lua
--@include unit.lua
local FIRST = 13
local now, node, attempt = lease_clock(KEYS[4], ARGV[1]), ARGV[2], ARGV[10]
local state, spend, unit_ms, ends = unpack(redis.call('HMGET', KEYS[1], 'state', 'spend', 'unit_ms', 'ends_ms'))
local fields = {'left', ARGV[8], 'w:' .. ARGV[4], 'opened_ms', 'revoked', 'first', 'units'}
local head = #fields
for i = FIRST, #ARGV do
  for _, kind in ipairs({'u:', 'r:', 'p:'}) do fields[#fields + 1] = kind .. ARGV[i] end
end
local page = hmget_many(KEYS[2], fields)
local function field_of(i, n) return page[head + 3 * (i - FIRST) + n] end
if not state or not page[1] then return {'', false} end
local first, units_of_page = tonumber(page[6]), tonumber(page[7])
for i = FIRST, #ARGV do
  local place = tonumber(ARGV[i]) - first
  if place < 0 or place >= units_of_page then return {'', false} end
end
if redis.call('EXISTS', ARGV[3] .. node) == 0 then return {'unheard', false} end

local units, again, deadline = {}, false, math.huge
for i = FIRST, #ARGV do
  units[i] = read_unit(field_of(i, 1))
  again = again or claim_of(units[i], 'attempt', attempt) ~= nil
end
if unit_ms and page[4] then deadline = page[4] + unit_ms end
if ends then deadline = math.min(deadline, tonumber(ends)) end
local left_ms = deadline < math.huge and math.max(0, deadline - now) or -1
local waiting = state == 'running' and page[3] ~= false and left_ms ~= 0 and ARGV[12] ~= '1'
if not waiting and not again then
  redis.call('ZREM', KEYS[3], ARGV[5])
  if page[3] then redis.call('HDEL', KEYS[2], 'w:' .. ARGV[4]) end
  local pool = redis.call('HGET', KEYS[5], ARGV[4])
  if pool then
    redis.call('HDEL', KEYS[5], ARGV[4])
    if redis.call('HINCRBY', KEYS[6], pool, -1) <= 0 then redis.call('HDEL', KEYS[6], pool) end
  end
end

local once, twice, owned = spend == 'at_most_once', false, false
local epoch = tonumber(redis.call('HGET', KEYS[7], 'number') or 0)
local function is_revoked(position)
  return page[5] and string.find(page[5], ',' .. position .. ',', 1, true)
end

-- The verdict on a unit that nobody has answered this attempt for; the unit is written.
local function decide(position, u, probes)
  local others, verdict = u.owner ~= '' and u.owner ~= node, 'run'
  if others and in_living_hands(u, ARGV[3], now, tonumber(ARGV[7])) then
    verdict, owned = 'owned', true
  elseif waiting then
    verdict = 'waiting'
  else
    if others and u.owner ~= NOBODY then u.deaths = u.deaths + 1 end
    if state ~= 'running' then verdict = 'cancelled'
    elseif u.deaths >= tonumber(ARGV[6]) then verdict = 'poison'
    elseif once and u.owner ~= '' then verdict = 'unknown'
    elseif is_revoked(position) then verdict = 'revoked'
    elseif left_ms == 0 then verdict = 'expired'
    elseif u.calls - probes >= tonumber(ARGV[9]) then verdict = 'spent'
    else u.calls, twice = u.calls + 1, twice or u.owner ~= '' end
    u.fence, u.owner, u.at = math.max(u.fence, epoch) + 1, node, now
  end
  local asked_only = verdict == 'owned' or verdict == 'waiting'
  u.claims[#u.claims + 1] = {attempt = attempt, fence = asked_only and 0 or u.fence, verdict = verdict, ending = ''}
  write_unit(KEYS[2], position, u)
  return verdict
end

local reply = {state, page[2]}
for i = FIRST, #ARGV do
  local u, verdict = units[i] or new_unit(now)
  local before = claim_of(u, 'attempt', attempt)
  if before then verdict = before.verdict
  elseif field_of(i, 2) then verdict = 'done'
  elseif again then verdict = 'owned'
  else verdict = decide(ARGV[i], u, tonumber(field_of(i, 3) or 0)) end
  local fence = before and before.fence > 0 and before.fence or u.fence
  reply[#reply + 1] = {verdict, fence, u.attempts, u.requeues, u.calls, now - u.since, left_ms}
end
if owned then
  redis.call('HSET', KEYS[2], 'unchorded', 1)  -- this message ends without counting for its chord
  if ARGV[11] ~= '' then redis.call('ZADD', KEYS[3], now + tonumber(ARGV[11]), ARGV[5]) end
end
if twice then redis.call('HINCRBY', KEYS[1], 'possible_double_charges', 1) end  -- one call, whatever it is for
return reply
