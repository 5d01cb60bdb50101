#!lua flags=allow-oom
-- defer.lua: units are given up until a message comes for them again: at their time, holding neither slot nor lease,
-- or at once, by a message that the caller publishes itself (then the time is only a safeguard).
-- KEYS  1 job  2 page  3 due  4 clock  5 epoch
-- ARGV  1 now_ms  2 lane  3 incarnation.page  4 prefix of the members of due  5 JSON {counter: n}
--       6 JSON [[position, fence, attempts, requeues, 1 if no call was made, 1 if it tried a pool that is down], ...]
--       7 JSON [[token, delay ms, 1 if it must wait], ...]
-- Reply {1 if this was news, verdict, ...}; verdict: deferred | stale | gone. Nothing becomes due unless all are deferred.
-- Holds: a unit is deferred by the claim that holds it, or by a newer one that an older copy of the store does not have.
--       The same again is answered as the first time and changes nothing; the counters move only with news.
--@include ../../workers/store/clock.lua
--@include ../../workers/store/many.lua
--@include unit.lua
--@include told.lua
local now, entries, counters = lease_clock(KEYS[4], ARGV[1]), cjson.decode(ARGV[6]), cjson.decode(ARGV[5])
local reply, deferred, stale = {0}, 0, 0
local page = read_page(KEYS[2], entries)
for i, entry in ipairs(entries) do
  local position, fence, attempts, requeues, unpaid, probe = unpack(entry)
  local u, result = page and page.units[i], page and page.results[i]
  local verdict = 'stale'
  if not page then
    verdict = 'gone'
    if was_late(KEYS[1], 'late:' .. ARGV[2] .. '|' .. ARGV[3], position, fence) then stale = stale + 1 end
  elseif result then
    if was_late(KEYS[2], 'late', position, fence) then stale = stale + 1 end
  elseif is_held(page, u, fence, KEYS[5]) then
    u = u or new_unit(now)
    local claim = claim_of(u, 'fence', fence)
    if not claim then
      claim, u.calls = {attempt = '', fence = fence, verdict = 'run'}, u.calls + 1
      u.claims[#u.claims + 1] = claim
    end
    claim.ending = 'd'
    u.fence, u.attempts, u.requeues, u.calls, u.owner = fence, attempts, requeues, math.max(0, u.calls - unpaid), ''
    write_unit(KEYS[2], position, u)
    if probe == 1 then redis.call('HINCRBY', KEYS[2], 'p:' .. position, 1) end
    verdict, deferred = 'deferred', deferred + 1
  elseif (claim_of(u, 'fence', fence) or {}).ending == 'd' then
    verdict = 'deferred'
  elseif tells(KEYS[2], page, position, u, fence) then
    stale = stale + 1
    if not u then redis.call('ZADD', KEYS[3], 'NX', now, ARGV[4] .. position) end  -- its message is gone
  end
  reply[#reply + 1] = verdict
end
if deferred + stale > 0 then
  reply[1], counters.stale = 1, stale
  count(KEYS[1], counters)
end
if deferred == #entries then
  for _, token in ipairs(cjson.decode(ARGV[7])) do
    redis.call('ZADD', KEYS[3], now + token[2], ARGV[4] .. token[1])
    if token[3] == 1 then redis.call('HSET', KEYS[2], 'w:' .. token[1], 1) end
  end
end
return reply
