#!lua flags=allow-oom
-- defer.lua: units are given up until a message comes for them again: at their time, holding neither slot nor lease,
-- or at once, by a message that the caller publishes itself (then the time is only a safeguard).
-- KEYS  1 job  2 page  3 due  4 clock  5 epoch
-- ARGV  1 now_ms  2 lane  3 incarnation.page  4 prefix of the members of due  5 JSON {counter: n}
--       6 JSON [[position, fence, attempts, requeues, 1 if no call was made, 1 if it tried a pool that is down], ...]
--       7 JSON [[token, delay ms, 1 if it must wait, tokens of input to reserve for it the next time, or 0, tokens of
--       output that its next call is to have, or 0], ...]
-- Reply {1 if this was news, verdict, ...}; verdict: deferred | stale | gone. Nothing becomes due unless all are
--       deferred.
-- Holds: a unit is deferred by the claim that holds it, or by a newer one that an older copy of the store does not
--       have. The same again is answered as the first time and changes nothing; the counters move only with news.
--@include ../../workers/store/clock.lua
--@include ../../workers/store/many.lua
--@include told.lua
--@include caps.lua
--@include counters.lua
local job, page_key, due, clock, epoch = unpack(KEYS)
local given_ms, lane, number, due_prefix, counters, entries, tokens = unpack(ARGV)
counters, entries, tokens = cjson.decode(counters), cjson.decode(entries), cjson.decode(tokens)
local now, page = lease_clock(clock, given_ms), read_page(page_key, entries)

-- The unit is its claim's to give up; a claim that the store does not have is noted, so that it is not counted again.
local function give_up(position, u, fence, attempts, requeues, unpaid)
  local claim = claim_of(u, 'fence', fence)
  if not claim then
    claim, u.calls = {attempt = '', fence = fence, verdict = 'run'}, u.calls + 1
    u.claims[#u.claims + 1] = claim
  end
  claim.ending = 'd'
  u.fence, u.attempts, u.requeues, u.calls, u.owner = fence, attempts, requeues, math.max(0, u.calls - unpaid), ''
  write_unit(page_key, position, u)
end

local reply, deferred, stale = {0}, 0, 0
for i, entry in ipairs(entries) do
  local position, fence, attempts, requeues, unpaid, probe = unpack(entry)
  local u, result = page and page.units[i], page and page.results[i]
  local verdict = 'stale'
  if not page then
    verdict = 'gone'
    if was_late(job, late_of_page(lane, number), position, fence) then stale = stale + 1 end
  elseif result then
    if was_late(page_key, 'late', position, fence) then stale = stale + 1 end
  elseif is_held(page, u, fence, epoch) then
    give_up(position, u or new_unit(now), fence, attempts, requeues, unpaid)
    if probe == 1 then redis.call('HINCRBY', page_key, 'p:' .. position, 1) end
    verdict, deferred = 'deferred', deferred + 1
  elseif (claim_of(u, 'fence', fence) or {}).ending == 'd' then
    verdict = 'deferred'
  elseif tells(page_key, page, position, u, fence) then
    stale = stale + 1
    if not u then redis.call('ZADD', due, 'NX', now, due_prefix .. position) end  -- its message is gone
  end
  reply[#reply + 1] = verdict
end
if deferred + stale > 0 then
  reply[1], counters.stale = 1, stale
  settle(job, page_key, entries, counters, not page or page.capped, given_ms)
  count(job, counters)
end
if deferred == #entries then
  for _, entry in ipairs(tokens) do
    local token, delay_ms, waits, needs, room = unpack(entry)
    redis.call('ZADD', due, now + delay_ms, due_prefix .. token)
    if waits == 1 then redis.call('HSET', page_key, 'w:' .. token, 1) end
    if needs > 0 then redis.call('HSET', page_key, 'n:' .. token, needs) end
    if room and room > 0 then redis.call('HSET', page_key, 'm:' .. token, room) end
  end
end
return reply
