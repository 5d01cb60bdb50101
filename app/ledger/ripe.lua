#!lua flags=allow-oom
-- ripe.lua: a cancelling job of which nothing is open any more is to be finished.
-- KEYS  1 job  2 pages      Reply 1 if it is to be finished; 0 while pages are open, and when it has ended.
local job, pages = unpack(KEYS)
local state = redis.call('HGET', job, 'state')
if state == 'cancelling' and redis.call('SCARD', pages) == 0 then
  redis.call('HSET', job, 'state', 'finishing')
  state = 'finishing'
end
return state == 'finishing' and 1 or 0
