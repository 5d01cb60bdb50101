#!lua
-- keep_token.lua: record a token that is issued, unless the one that it is issued for was revoked meanwhile.
-- KEYS  1 tokens  2 token_ends  3 revoked
-- ARGV  1 token id  2 its record  3 now, unix s  4 unix s until when the record is kept  5 parent's id, '' if none
--       6 records dropped at most
-- Reply 1; 0 if the parent is revoked or unknown.
-- Holds: a parent's record is kept as long as its last child's, so that revoking it ends them all.
local tokens, ends, revoked = unpack(KEYS)
local id, record, now, keep_until, parent, most = unpack(ARGV)
if parent ~= '' then
  if redis.call('HEXISTS', revoked, parent) == 1 or redis.call('HEXISTS', tokens, parent) == 0 then return 0 end
  redis.call('ZADD', ends, 'GT', keep_until, parent)
end
for _, over in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', '(' .. now, 'LIMIT', 0, most)) do
  redis.call('HDEL', tokens, over)
  redis.call('HDEL', revoked, over)
  redis.call('ZREM', ends, over)
end
redis.call('HSET', tokens, id, record)
redis.call('ZADD', ends, keep_until, id)
return 1
