#!lua flags=allow-oom
-- revoke_unit.lua: units of an open page get no call any more: whoever claims them next is told so. A call that is open
-- ends and counts, unless it would have to be made again.
-- KEYS  1 job  2 page  3 due  4 clock
-- ARGV  1 now_ms  2 prefix of the members of due  3 prefix of the nodes' beacons  4 how many tokens follow  5... tokens of
--       messages that may wait for their time, then positions
-- Reply a verdict for each position: revoked | open (in the hands of a living worker) | ended (it has a result) | gone (no
--       such page, or it has no such unit: not published yet, or gathered) | cancelled (with its job). The same to who asks again.
-- Holds: field `revoked` = ',<position>,...' of the page, which claim.lua reads.
--@include ../../workers/store/clock.lua
--@include unit.lua
local first, reply, changed = 5 + ARGV[4], {}, false
local state = redis.call('HGET', KEYS[1], 'state')
local left, from, units, list = unpack(redis.call('HMGET', KEYS[2], 'left', 'first', 'units', 'revoked'))
list = list or ','
for i = first, #ARGV do
  local position, verdict = ARGV[i], 'revoked'
  local place = tonumber(position) - tonumber(from or 0)
  if not left or place < 0 or place >= tonumber(units) then verdict = 'gone'
  elseif redis.call('HEXISTS', KEYS[2], 'r:' .. position) == 1 then verdict = 'ended'
  elseif state ~= 'running' then verdict = 'cancelled'
  else
    local u = read_unit(redis.call('HGET', KEYS[2], 'u:' .. position))
    if u and u.owner ~= '' and redis.call('EXISTS', ARGV[3] .. u.owner) == 1 then verdict = 'open' end
    if not string.find(list, ',' .. position .. ',', 1, true) then list, changed = list .. position .. ',', true end
  end
  reply[#reply + 1] = verdict
end
if changed then
  redis.call('HSET', KEYS[2], 'revoked', list)
  local now = lease_clock(KEYS[4], ARGV[1])
  for i = 5, first - 1 do redis.call('ZADD', KEYS[3], 'XX', now, ARGV[2] .. ARGV[i]) end
end
return reply
