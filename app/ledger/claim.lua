#!lua
-- claim.lua: the work claim. Who may work on these units of a page now?
-- KEYS  1 job  2 page  3 due  4 clock  5 the page's assignments  6 assigned  7 epoch
-- ARGV  1 now_ms  2 node  3 prefix of the nodes' beacons  4 token of the message  5 its member of due
--       6 deaths that quarantine  7 ms that a claim may last  8 item field  9 most calls of a unit  10... positions
-- Reply {job state, item, {verdict, fence, attempts, requeues, calls, ms since the first claim}, ...}; verdict: run | done | owned | waiting |
--       cancelled | poison | spent (no more calls are paid for) | unknown (a call may have been paid, and the job pays
--       for no second one). Job state '' when there is no such page any more, 'unheard' while the claimer's own beacon
--       cannot be heard: others would take at once what it claims.
-- Holds: of all claims of a unit only that with the newest fence can write a result. A fence is an epoch plus
--       the claims since, so that none comes twice, not even after a flush. A claim lasts as long as its owner's beacon,
--       and at most as long as a call may; after that the unit is free for the next, and a death is counted against it.
--@include clock.lua
--@include unit.lua
local now, node = lease_clock(KEYS[4], ARGV[1]), ARGV[2]
local state = redis.call('HGET', KEYS[1], 'state')
if not state or redis.call('EXISTS', KEYS[2]) == 0 then return {'', false} end
if redis.call('EXISTS', ARGV[3] .. node) == 0 then return {'unheard', false} end
local epoch = tonumber(redis.call('HGET', KEYS[7], 'number') or 0)
local reply = {state, redis.call('HGET', KEYS[2], ARGV[8])}
local waiting = state == 'running' and redis.call('HEXISTS', KEYS[2], 'w:' .. ARGV[4]) == 1
if not waiting then
  redis.call('ZREM', KEYS[3], ARGV[5])
  redis.call('HDEL', KEYS[2], 'w:' .. ARGV[4])
  local pool = redis.call('HGET', KEYS[5], ARGV[4])
  if pool then
    redis.call('HDEL', KEYS[5], ARGV[4])
    if redis.call('HINCRBY', KEYS[6], pool, -1) <= 0 then redis.call('HDEL', KEYS[6], pool) end
  end
end
local once, twice = redis.call('HGET', KEYS[1], 'spend') == 'at_most_once', false
for i = 10, #ARGV do
  local position, verdict = ARGV[i], 'run'
  local u = read_unit(KEYS[2], position) or
    {fence = 0, owner = '', attempts = 0, requeues = 0, calls = 0, deaths = 0, since = now, at = now}
  local others = u.owner ~= '' and u.owner ~= node
  if redis.call('HEXISTS', KEYS[2], 'r:' .. position) == 1 then
    verdict = 'done'
  elseif others and in_living_hands(u, ARGV[3], now, tonumber(ARGV[7])) then
    verdict = 'owned'
    redis.call('HSET', KEYS[2], 'unchorded', 1)  -- this message ends without counting for its chord
  elseif waiting then
    verdict = 'waiting'
  else
    if others then u.deaths = u.deaths + 1 end
    if state ~= 'running' then verdict = 'cancelled'
    elseif u.deaths >= tonumber(ARGV[6]) then verdict = 'poison'
    elseif once and u.owner ~= '' then verdict = 'unknown'
    elseif u.calls >= tonumber(ARGV[9]) then verdict = 'spent'
    else u.calls, twice = u.calls + 1, twice or u.owner ~= '' end
    u.fence, u.owner, u.at = math.max(u.fence, epoch) + 1, node, now
    write_unit(KEYS[2], position, u)
  end
  reply[#reply + 1] = {verdict, u.fence, u.attempts, u.requeues, u.calls, now - u.since}
end
if twice then redis.call('HINCRBY', KEYS[1], 'possible_double_charges', 1) end  -- one call, whatever it is for
return reply
