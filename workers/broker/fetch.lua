#!lua flags=allow-oom
-- fetch.lua: several messages of one queue, and the one that the broker's pop has brought already, are noted as
-- unacknowledged in one step, in kombu's form; one that is no message is returned all the same, and not noted.
-- KEYS  1 queue  2 unacknowledged messages  3 their index      ARGV  1 Unix time, s  2 the first message  3 most others
-- Reply {message, the tag it is noted under or '', ...}
--@include ../store/many.lua
local queue, unacked, index = unpack(KEYS)
local now_s, first, others = unpack(ARGV)
others = tonumber(others)
local taken = {first}
if others > 0 then
  for _, raw in ipairs(redis.call('RPOP', queue, others) or {}) do taken[#taken + 1] = raw end
end
local reply, entries, noted = {}, {}, {}
for _, raw in ipairs(taken) do
  local tag = ''
  local ok, message = pcall(cjson.decode, raw)
  local properties = ok and type(message) == 'table' and message.properties
  local place = type(properties) == 'table' and properties.delivery_info
  if type(place) == 'table' and type(properties.delivery_tag) == 'string' and properties.delivery_tag ~= '' and
     type(place.exchange) == 'string' and type(place.routing_key) == 'string' then
    local entry = string.format('[%s,%s,%s]', raw, cjson.encode(place.exchange), cjson.encode(place.routing_key))
    tag = properties.delivery_tag
    entries[#entries + 1], entries[#entries + 2] = tag, entry
    noted[#noted + 1], noted[#noted + 2] = now_s, tag
  end
  reply[#reply + 1], reply[#reply + 2] = raw, tag
end
change_many('HSET', unacked, entries)
change_many('ZADD', index, noted)
return reply
