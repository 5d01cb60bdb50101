#!lua flags=allow-oom
-- record.lua: results take effect once, whoever brings them and however often.
-- KEYS  1 job  2 page  3 epoch  4 due  5 clock  6 score board
-- ARGV  1 now_ms  2 lane  3 incarnation.page  4 JSON {counter: n}  5 JSON [[position, fence, result, scored 1|0,
--       place, mark], ...]; the place is -1 if the job has no score board
--       6 prefix of the members of due  7 node  8 prefix of the nodes' beacons
-- Reply {left in the page, 1 if the lane wants planning, 1 if no chord will gather the page, 1 if this was news,
--       verdict, ...}; verdict: new | again (a result is there) | stale (an old fence) | gone (the page is gathered).
-- A fence that is newer than the stored one, or where none is stored than the epoch that the page was opened in, is of
-- a claim that an older copy of the store does not have: it counts. An older one that nobody has replaced becomes due,
-- for its message is gone.
-- Holds: left = units of the page without a result; a unit's first result stays. The same write again is answered as
--       the first time, and counters move only for claims that have not told their end before.
--@include ../../workers/store/clock.lua
--@include ../../workers/store/many.lua
--@include told.lua
--@include caps.lua
--@include counters.lua
--@include planning.lua
--@include board.lua
local job, page_key, epoch, due, clock, board = unpack(KEYS)
local given_ms, lane, number, counters, entries, due_prefix, node, beacons = unpack(ARGV)
counters, entries = cjson.decode(counters), cjson.decode(entries)

local page = read_page(page_key, entries)
if not page then
  local reply, late = {-1, 0, 0, 0}, 0
  for _, entry in ipairs(entries) do
    if was_late(job, late_of_page(lane, number), entry[1], entry[2]) then late = late + 1 end
    reply[#reply + 1] = 'gone'
  end
  if late > 0 then
    reply[4], counters.stale = 1, late
    settle(job, page_key, entries, counters, true, given_ms)
    count(job, counters)
  end
  return reply
end

-- What each entry is, and what the page holds then.
local reply, fields, ended, brought = {0, 0, 0, 0}, {}, {}, {}
local new, scored, stale, news = 0, 0, 0, false
for i, entry in ipairs(entries) do
  local position, fence, payload, is_scored, place, mark = unpack(entry)
  local u, result, verdict = page.units[i], page.results[i], 'stale'
  if brought[position] then verdict = 'again'
  elseif result then
    verdict = is_of(result, claim_mark(page, fence)) and 'new' or 'again'
    news = verdict == 'again' and was_late(page_key, 'late', position, fence) or news
  elseif is_held(page, u, fence, epoch) then
    verdict, new, scored, news = 'new', new + 1, scored + is_scored, true
    fields[2 * new - 1], fields[2 * new] = 'r:' .. position, claim_mark(page, fence) .. payload
    ended[new], brought[position] = 'u:' .. position, true
    note_late(page_key, position, u, fence)
    if place >= 0 then write_mark(board, place, mark) end
  elseif tells(page_key, page, position, u, fence) then
    stale, news = stale + 1, true
    if not u then redis.call('ZADD', due, 'NX', lease_clock(clock, given_ms), due_prefix .. position) end
  end
  reply[#reply + 1] = verdict
end
local left = page.left - new
if new > 0 then
  fields[2 * new + 1], fields[2 * new + 2] = 'left', left
  change_many('HSET', page_key, fields)
  change_many('HDEL', page_key, ended)
end

-- What the job counts then, and whether this caller is to plan on.
local open, cursor, low, planning = 'open:' .. lane, 'cursor:' .. lane, 'low:' .. lane, 'planning:' .. lane
counters.done, counters.scored, counters.failed, counters.stale, counters[open] = new, scored, new - scored, stale, -new
if news then settle(job, page_key, entries, counters, page.capped, given_ms) end
local found = count(job, news and counters or {}, {cursor, low, planning})
local who = #entries > 0 and string.format('%s.%d.%d', number, entries[1][1], entries[1][2]) or ''
if found.state == 'running' and found[cursor] ~= '' then
  local emptied = new > 0 and found[open] <= tonumber(found[low] or 0)
  if (emptied or was_told_to_plan(found[planning], who)) and
     is_told_to_plan(job, lane, found[planning], who, node, beacons) then reply[2] = 1 end
end
reply[1], reply[4] = left, news and 1 or 0
if left == 0 and page.unchorded then reply[3] = 1 end
return reply
