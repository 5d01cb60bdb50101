#!lua
-- claim.lua: the work claim. Who may work on these units of a page now?
-- KEYS  1 job  2 page  3 due  4 clock  5 the page's assignments  6 assigned  7 epoch
-- ARGV  1 now_ms  2 node, or the batch that claims  3 prefix of the nodes' beacons  4 token of the message
--       5 its member of due  6 deaths that quarantine  7 ms that a claim may last  8 item field  9 most calls of a unit
--       10 a name of this attempt  11 ms until the message comes again if others own a unit, or ''
--       12 1 if a unit that waits for its time is claimed all the same
--       13 what a call that must keep caps or budgets may take at most: '<tokens of input without the item>,<tokens of
--       output>,<picos of a token of input>,<of output>', and its budgets (purses.lua); else ''  14... positions
-- Reply {job state, item, {verdict, fence, attempts, requeues, calls, ms since the first claim, ms until its deadline
--       or -1, tokens of input that are reserved or -1, tokens of output that the call is to have or 0}, ...};
--       verdict: run | done | owned | waiting | cancelled | revoked | poison | spent (no more calls are paid for) |
--       unknown (a call may have been paid, and the job pays for no second one) | expired (its deadline has passed) |
--       short (others have reserved what it needs; the message comes again) | budget (one of its budgets is met for
--       today or this month; the message comes again) | capped (its job's cap is met, or a budget for good). Job state
--       '' when there is no such page any more, or no such position in it; 'unheard' while the claimer's own beacon
--       cannot be heard: others would take at once what it claims.
-- Holds: of all claims of a unit only that with the newest fence can write a result. A fence is an epoch plus
--       the claims since, so that none comes twice, not even after a flush. A claim lasts as long as its owner's
--       beacon, and at most as long as a call may; after that the unit is free for the next, and a death is counted
--       against it. An attempt that comes again is answered as the first time and changes nothing.
--@include ../../workers/store/clock.lua
--@include ../../workers/store/many.lua
--@include assigned.lua
--@include caps.lua
--@include claimed.lua
local job, page_key, due, clock, assignments, assigned, epoch_key = unpack(KEYS)
local given_ms, node, beacons, token, due_member, deaths_max, claim_ms, item, calls_max, attempt, again_ms, early,
      needs = unpack(ARGV, 1, 13)
local positions = rest(ARGV, 14)
local SHORT_MS, BUDGET_MS, ITEM_GROWS = 1000, 60000, 1.25  -- an item's lines are quoted in its question
deaths_max, claim_ms, calls_max, early = tonumber(deaths_max), tonumber(claim_ms), tonumber(calls_max), early == '1'

local now = lease_clock(clock, given_ms)
local state, spend, unit_ms, ends_ms = unpack(redis.call('HMGET', job, 'state', 'spend', 'unit_ms', 'ends_ms'))
local page = find_units(page_key, item, token, positions)
if not state or not page then return {'', false} end
if redis.call('EXISTS', beacons .. node) == 0 then return {'unheard', false} end

-- The message has arrived, unless it came before its time.
local again = false
for _, unit in ipairs(page.units) do again = again or claim_of(unit.state, 'attempt', attempt) ~= nil end
local left_ms = left_until_deadline(page, unit_ms, ends_ms, now)
local waiting = state == 'running' and page.waits and left_ms ~= 0 and not early
if not waiting and not again then
  redis.call('ZREM', due, due_member)
  if page.waits then redis.call('HDEL', page_key, 'w:' .. token) end
  local pool = redis.call('HGET', assignments, token)
  if pool then
    redis.call('HDEL', assignments, token)
    count_assigned(assigned, pool, -1)
  end
end

local once, twice, owned = spend == 'at_most_once', false, false
local epoch = tonumber(redis.call('HGET', epoch_key, 'number') or 0)

-- What caps and budgets say of the call: 'run' once there is room for it, reserved under its first unit's new fence.
local room, input_most, wall
local input, output, input_picos, output_picos, budgets =
  string.match(needs, '^(%d+),(%d+),(%d+),(%d+)(.*)$')
if input then
  input_most = math.max(page.needs, input + math.ceil(ITEM_GROWS * #(page.item or '')))
  output = math.max(output, page.room)
end
local function find_room(position, fence)
  if room then return room end
  local cost, tokens = input_most * input_picos + output * output_picos, input_most + output
  local purses, day = {}, nil
  if budgets ~= '' then
    wall = wall_clock(given_ms)
    day = math.floor(wall / DAY_MS)
    purses = read_budgets(job, budgets, day)
  end
  room = take_room(job, reservation_of(page_key, position, fence), cost, tokens, day, purses)
  if room == 'run' and not page.capped then redis.call('HSET', page_key, 'capped', 1) end
  return room
end

-- Whether a unit that is free may be called; it is this node's from now on, with a new fence.
local function take(unit, u)
  local others, verdict = u.owner ~= '' and u.owner ~= node, 'run'
  local fence = math.max(u.fence, epoch) + 1
  if others and u.owner ~= NOBODY then u.deaths = u.deaths + 1 end
  if input or page.capped then leave_unheard(job, page_key, unit.position, u) end
  if state ~= 'running' then verdict = 'cancelled'
  elseif u.deaths >= deaths_max then verdict = 'poison'
  elseif once and u.owner ~= '' then verdict = 'unknown'
  elseif is_revoked(page, unit.position) then verdict = 'revoked'
  elseif left_ms == 0 then verdict = 'expired'
  elseif u.calls - unit.probes >= calls_max then verdict = 'spent'
  elseif input then verdict = find_room(unit.position, fence) end
  if verdict == 'short' or verdict == 'budget' then
    if u.owner ~= '' then u.owner = NOBODY end  -- its death is counted
    return verdict
  end
  if verdict == 'run' then u.calls, twice = u.calls + 1, twice or u.owner ~= '' end
  u.fence, u.owner, u.at = fence, node, now
  return verdict
end

-- The verdict on a unit that nobody has answered this attempt for; the unit is written.
local function decide(unit, u)
  local verdict
  if u.owner ~= node and in_living_hands(u, beacons, now, claim_ms) then verdict, owned = 'owned', true
  elseif waiting then verdict = 'waiting'
  else verdict = take(unit, u) end
  local asked_only = verdict == 'owned' or verdict == 'waiting' or verdict == 'short' or verdict == 'budget'
  u.claims[#u.claims + 1] = {attempt = attempt, fence = asked_only and 0 or u.fence, verdict = verdict, ending = ''}
  write_unit(page_key, unit.position, u)
  return verdict
end

local reply = {state, page.item}
for _, unit in ipairs(page.units) do
  local u, verdict = unit.state or new_unit(now), nil
  local before = claim_of(u, 'attempt', attempt)
  if before then verdict = before.verdict
  elseif unit.has_result then verdict = 'done'
  elseif again then verdict = 'owned'
  else verdict = decide(unit, u) end
  local fence = before and before.fence > 0 and before.fence or u.fence
  reply[#reply + 1] = {verdict, fence, u.attempts, u.requeues, u.calls, now - u.since, left_ms,
                       input_most or -1, page.room}
end
if room == 'short' or room == 'budget' then
  local wait_ms = room == 'short' and SHORT_MS or math.min(BUDGET_MS, DAY_MS - wall % DAY_MS)
  redis.call('ZADD', due, now + wait_ms, due_member)
  redis.call('HSET', page_key, 'w:' .. token, 1)
end
if owned then
  redis.call('HSET', page_key, 'unchorded', 1)  -- this message ends without counting for its chord
  if again_ms ~= '' then redis.call('ZADD', due, now + tonumber(again_ms), due_member) end
end
if twice then redis.call('HINCRBY', job, 'possible_double_charges', 1) end  -- one call, whatever it is for
return reply
