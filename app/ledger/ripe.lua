#!lua flags=allow-oom
-- ripe.lua: a cancelling job of which nothing is open any more is to be finished.
-- KEYS  1 job  2 pages      Reply 1 if it is to be finished; 0 while pages are open, and when it has ended.
local state = redis.call('HGET', KEYS[1], 'state')
if state == 'cancelling' and redis.call('SCARD', KEYS[2]) == 0 then
  redis.call('HSET', KEYS[1], 'state', 'finishing')
  state = 'finishing'
end
return state == 'finishing' and 1 or 0
