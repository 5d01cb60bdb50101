#!lua flags=allow-oom
-- progress.lua: a task's state while it runs, stored and told like a result, unless its end is stored already.
-- KEYS  1 the task's result
-- ARGV  1 Celery's document of the state  2 s until it is forgotten, 0: never
-- Reply 1 if it is stored.
local result = unpack(KEYS)
local document, keep_s = unpack(ARGV)
local stored = redis.call('GET', result)
if stored then
  local status = cjson.decode(stored)['status']
  if status == 'SUCCESS' or status == 'FAILURE' or status == 'REVOKED' then return 0 end
end
redis.call('SET', result, document)
if tonumber(keep_s) > 0 then redis.call('EXPIRE', result, keep_s) end
redis.call('PUBLISH', result, document)
return 1
