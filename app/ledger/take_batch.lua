#!lua flags=allow-oom
-- take_batch.lua: what is to be looked after of batches, one at a time, each by one worker.
-- KEYS  1 batches  2 clock  3 what this node took last, 'attempt member turn'
-- ARGV  1 now_ms  2 node  3 prefix of the nodes' beacons  4 ms for which a batch is held  5 a name of this attempt
-- Reply {member, turn}; {} if nothing is due. An attempt that comes again is answered as the first time. A member that
--       begins with '@' is a batch, which the caller holds from now on: every write names the turn, and one with an
--       older turn is refused. Any other is 'job|incarnation|lane', of which a batch is to be formed; it is in
--       `batches` no more, and the housekeeping brings it back if the caller dies.
-- Holds: a batch that a living node holds, and that it has not let go, is taken by nobody else.
--@include ../../workers/store/clock.lua
local batches, clock, last_taken = unpack(KEYS)
local given_ms, node, beacons, held_ms, attempt = unpack(ARGV)
local LOOKED_AT, AGAIN_MS = 100, 1000
local before, member_before, turn_before = string.match(redis.call('GET', last_taken) or '', '^(%S+) (%S+) (%d+)$')
if before == attempt then return {member_before, tonumber(turn_before)} end
local now = lease_clock(clock, given_ms)

local function taken(member, turn)
  redis.call('SET', last_taken, attempt .. ' ' .. member .. ' ' .. turn, 'PX', held_ms)
  return {member, turn}
end

for _, member in ipairs(redis.call('ZRANGEBYSCORE', batches, '-inf', now, 'LIMIT', 0, LOOKED_AT)) do
  if string.sub(member, 1, 1) ~= '@' then
    redis.call('ZREM', batches, member)
    return taken(member, 0)
  end
  local record = beacons .. member
  local stage, holder, held_until = unpack(redis.call('HMGET', record, 'stage', 'holder', 'held_until'))
  if not stage then
    redis.call('ZREM', batches, member)
  elseif holder and tonumber(held_until) > now and redis.call('EXISTS', beacons .. holder) == 1 then
    redis.call('ZADD', batches, now + AGAIN_MS, member)
  else
    redis.call('HSET', record, 'holder', node, 'held_until', now + held_ms)
    redis.call('HDEL', record, 'written')
    redis.call('ZADD', batches, now + held_ms, member)
    return taken(member, redis.call('HINCRBY', record, 'turn', 1))
  end
end
return {}
