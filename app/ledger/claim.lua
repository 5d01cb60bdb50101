-- claim.lua: the work claim. Who may work on these units of a page now?
-- KEYS  1 job  2 page  3 due  4 clock  5 the page's assignments  6 assigned
-- ARGV  1 now_ms  2 node  3 prefix of the nodes' beacons  4 token of the message  5 its member of due
--       6 deaths that quarantine  7 ms that a claim may last  8 item field  9... positions
-- Reply {job state, item, {verdict, fence, attempts, requeues, calls, ms since the first claim}, ...}; verdict: run | done | owned | waiting |
--       cancelled | poison. Job state '' when there is no such page any more.
-- Holds: of all claims of a unit only that with the newest fence can write a result. A claim lasts as long as its
--       owner's beacon, and at most as long as a call may; after that the unit is free for the next, and a death is counted against it.
--@include clock.lua
--@include unit.lua
local now, node = lease_clock(KEYS[4], ARGV[1]), ARGV[2]
local state = redis.call('HGET', KEYS[1], 'state')
if not state or redis.call('EXISTS', KEYS[2]) == 0 then return {'', false} end
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
for i = 9, #ARGV do
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
    if u.owner ~= '' and u.calls > 0 then redis.call('HINCRBY', KEYS[1], 'possible_double_charges', 1) end
    if state ~= 'running' then verdict = 'cancelled'
    elseif u.deaths >= tonumber(ARGV[6]) then verdict = 'poison'
    else u.calls = u.calls + 1 end
    u.fence, u.owner, u.at = u.fence + 1, node, now
    write_unit(KEYS[2], position, u)
  end
  reply[#reply + 1] = {verdict, u.fence, u.attempts, u.requeues, u.calls, now - u.since}
end
return reply
