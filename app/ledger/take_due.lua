#!lua
-- take_due.lua: the messages whose time has come, each to be published now by the caller. They stay due, later, until
-- their claim: a caller that dies before it publishes loses nothing.
-- KEYS  1 due  2 clock  3 what this node took last, 'attempt member member ...'
-- ARGV  1 now_ms  2 most  3 ms until an unclaimed one comes again  4 prefix of the page keys  5 number of this attempt
-- Reply members 'job|incarnation|lane|page|token'. An attempt that comes again is answered as the first time; after the
--       node's next one nobody waits for its answer.
--@include ../../workers/store/clock.lua
local due, clock, last_taken = unpack(KEYS)
local given_ms, most, again_ms, jobs_prefix, attempt = unpack(ARGV)
local taken, last = {}, redis.call('GET', last_taken)
local newest = last and tonumber(string.match(last, '^%d+'))
if newest == tonumber(attempt) then
  for member in string.gmatch(last, ' (%S+)') do taken[#taken + 1] = member end
end
if newest and newest >= tonumber(attempt) then return taken end
local now = lease_clock(clock, given_ms)
for _, member in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, most)) do
  local job, incarnation, lane, number, token = string.match(member, '^(.-)|(%w+)|(%d+)|(%d+)|(b?%d+)$')
  local page = jobs_prefix .. job .. ':page:' .. incarnation .. ':' .. lane .. ':' .. number
  if redis.call('EXISTS', page) == 1 then
    redis.call('ZADD', due, now + tonumber(again_ms), member)
    redis.call('HDEL', page, 'w:' .. token)
    taken[#taken + 1] = member
  else
    redis.call('ZREM', due, member)
  end
end
if #taken > 0 then redis.call('SET', last_taken, attempt .. ' ' .. table.concat(taken, ' '), 'PX', again_ms) end
return taken
