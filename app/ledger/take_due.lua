#!lua
-- take_due.lua: the messages whose time has come, each to be published now by the caller. They stay due, later, until
-- their claim: a caller that dies before it publishes loses nothing.
-- KEYS  1 due  2 clock  3 what this node took last, 'attempt member member ...'
-- ARGV  1 now_ms  2 most  3 ms until an unclaimed one comes again  4 prefix of the page keys  5 number of this attempt
-- Reply members 'job|incarnation|lane|page|token'. An attempt that comes again is answered as the first time; after the node's next
-- one nobody waits for its answer.
--@include ../../workers/store/clock.lua
local taken, last = {}, redis.call('GET', KEYS[3])
local newest = last and tonumber(string.match(last, '^%d+'))
if newest == tonumber(ARGV[5]) then
  for member in string.gmatch(last, ' (%S+)') do taken[#taken + 1] = member end
end
if newest and newest >= tonumber(ARGV[5]) then return taken end
local now = lease_clock(KEYS[2], ARGV[1])
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[2])) do
  local job, incarnation, lane, page, token = string.match(member, '^(.-)|(%w+)|(%d+)|(%d+)|(b?%d+)$')
  local key = ARGV[4] .. job .. ':page:' .. incarnation .. ':' .. lane .. ':' .. page
  if redis.call('EXISTS', key) == 1 then
    redis.call('ZADD', KEYS[1], now + tonumber(ARGV[3]), member)
    redis.call('HDEL', key, 'w:' .. token)
    taken[#taken + 1] = member
  else
    redis.call('ZREM', KEYS[1], member)
  end
end
if #taken > 0 then redis.call('SET', KEYS[3], ARGV[5] .. ' ' .. table.concat(taken, ' '), 'PX', ARGV[3]) end
return taken
