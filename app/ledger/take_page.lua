#!lua flags=allow-oom
-- take_page.lua: a page's fields, if it is whole. If its chord fired too early, its last result will have it gathered.
-- KEYS  1 page      Reply the fields and values of the page; nothing if units are open, or it is gathered already.
local page = unpack(KEYS)
local left = redis.call('HGET', page, 'left')
if not left then return {} end
if tonumber(left) > 0 then
  redis.call('HSET', page, 'unchorded', 1)
  return {}
end
return redis.call('HGETALL', page)
