#!lua flags=allow-oom
-- revoke_unit.lua: units of an open page get no call any more: whoever claims them next is told so. A call that is open
-- ends and counts, unless it would have to be made again.
-- KEYS  1 job  2 page  3 due  4 clock
-- ARGV  1 now_ms  2 prefix of the members of due  3 prefix of the nodes' beacons  4 how many tokens follow  5... tokens
--       of messages that may wait for their time, then positions
-- Reply a verdict for each position: revoked | open (in the hands of a living worker) | ended (it has a result) | gone
--       (no such page, or it has no such unit: not published yet, or gathered) | cancelled (with its job). The same to
--       who asks again.
-- Holds: field `revoked` = ',<position>,...' of the page, which claim.lua reads.
--@include ../../workers/store/clock.lua
--@include ../../workers/store/many.lua
--@include unit.lua
local job, page, due, clock = unpack(KEYS)
local given_ms, due_prefix, beacons, token_count = unpack(ARGV, 1, 4)
local tokens, positions = rest(ARGV, 5, 4 + token_count), rest(ARGV, 5 + token_count)
local state = redis.call('HGET', job, 'state')
local left, first, units, list = unpack(redis.call('HMGET', page, 'left', 'first', 'units', 'revoked'))
local reply, changed = {}, false
list = list or ','
for _, position in ipairs(positions) do
  local verdict, place = 'revoked', tonumber(position) - tonumber(first or 0)
  if not left or place < 0 or place >= tonumber(units) then verdict = 'gone'
  elseif redis.call('HEXISTS', page, 'r:' .. position) == 1 then verdict = 'ended'
  elseif state ~= 'running' then verdict = 'cancelled'
  else
    local u = read_unit(redis.call('HGET', page, 'u:' .. position))
    if u and u.owner ~= '' and redis.call('EXISTS', beacons .. u.owner) == 1 then verdict = 'open' end
    if not string.find(list, ',' .. position .. ',', 1, true) then list, changed = list .. position .. ',', true end
  end
  reply[#reply + 1] = verdict
end
if changed then
  redis.call('HSET', page, 'revoked', list)
  local now = lease_clock(clock, given_ms)
  for _, token in ipairs(tokens) do redis.call('ZADD', due, 'XX', now, due_prefix .. token) end
end
return reply
