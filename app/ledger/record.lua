#!lua flags=allow-oom
-- record.lua: results take effect once, whoever brings them and however often.
-- KEYS  1 job  2 page  3 epoch  4 due  5 clock
-- ARGV  1 now_ms  2 lane  3 incarnation.page  4 JSON {counter: n}  5 JSON [[position, fence, result, scored 1|0], ...]
--       6 prefix of the members of due  7 node  8 prefix of the nodes' beacons
-- Reply {left in the page, 1 if the lane wants planning, 1 if no chord will gather the page, 1 if this was news, verdict, ...};
--       verdict: new | again (a result is there) | stale (an old fence) | gone (the page is gathered).
-- A fence that is newer than the stored one, or where none is stored than the epoch that the page was opened in, is of a claim
-- that an older copy of the store does not have: it counts. An older one that nobody has replaced becomes due, for its message is gone.
-- Holds: left = units of the page without a result; a unit's first result stays. The same write again is answered as
--       the first time, and counters move only for claims that have not told their end before.
--@include ../../workers/store/clock.lua
--@include ../../workers/store/many.lua
--@include unit.lua
--@include told.lua
--@include planning.lua
local lane, entries = ARGV[2], cjson.decode(ARGV[5])
local reply, counters, new, scored, stale, news = {-1, 0, 0, 0}, cjson.decode(ARGV[4]), 0, 0, 0, false

local page = read_page(KEYS[2], entries)
if not page then
  for _, entry in ipairs(entries) do
    if was_late(KEYS[1], 'late:' .. lane .. '|' .. ARGV[3], entry[1], entry[2]) then stale = stale + 1 end
    reply[#reply + 1] = 'gone'
  end
  if stale > 0 then
    reply[4], counters.stale = 1, stale
    count(KEYS[1], counters)
  end
  return reply
end

local results, ended, brought = {}, {}, {}
for i, entry in ipairs(entries) do
  local position, fence, u, result = entry[1], entry[2], page.units[i], page.results[i]
  local verdict = 'stale'
  if brought[position] then verdict = 'again'
  elseif result then
    verdict = is_of(result, claim_mark(page, fence)) and 'new' or 'again'
    news = verdict == 'again' and was_late(KEYS[2], 'late', position, fence) or news
  elseif is_held(page, u, fence, KEYS[3]) then
    verdict, new, scored, news = 'new', new + 1, scored + entry[4], true
    results[2 * new - 1], results[2 * new] = 'r:' .. position, claim_mark(page, fence) .. entry[3]
    ended[new], brought[position] = 'u:' .. position, true
    note_late(KEYS[2], position, u, fence)
  elseif tells(KEYS[2], page, position, u, fence) then
    stale, news = stale + 1, true
    if not u then redis.call('ZADD', KEYS[4], 'NX', lease_clock(KEYS[5], ARGV[1]), ARGV[6] .. position) end
  end
  reply[#reply + 1] = verdict
end

local left, cursor, low, planning = page.left - new, 'cursor:' .. lane, 'low:' .. lane, 'planning:' .. lane
if new > 0 then
  results[2 * new + 1], results[2 * new + 2] = 'left', left
  change_many('HSET', KEYS[2], results)
  change_many('HDEL', KEYS[2], ended)
end
counters.done, counters.scored, counters.failed, counters.stale = new, scored, new - scored, stale
counters['open:' .. lane] = -new
local job = count(KEYS[1], news and counters or {}, {cursor, low, planning})
local who = #entries > 0 and string.format('%s.%d.%d', ARGV[3], entries[1][1], entries[1][2]) or ''
if job.state == 'running' and job[cursor] ~= '' then
  local emptied = new > 0 and job['open:' .. lane] <= tonumber(job[low] or 0)
  if (emptied or was_told_to_plan(job[planning], who)) and
     is_told_to_plan(KEYS[1], lane, job[planning], who, ARGV[7], ARGV[8]) then reply[2] = 1 end
end
reply[1], reply[4] = left, news and 1 or 0
if left == 0 and page.unchorded then reply[3] = 1 end
return reply
