#!lua
-- governor_look.lua: what the scripts remember of a pool, for people to see.
-- KEYS  1 governor  2 open      ARGV  1 pool
-- Reply JSON of the enforcement state, '' if there is none. Changes nothing.
--@include standings.lua
local governor, open = unpack(KEYS)
local pool = unpack(ARGV)
local packed = redis.call('HGET', governor, 'enforcement')
if not packed then return '' end
local state = cmsgpack.unpack(packed)
count_open(state, open, pool)
-- All digits of every number, of which cjson would give 14.
local function json(value)
  if type(value) == 'number' then return string.format('%.17g', value) end
  if type(value) ~= 'table' then return cjson.encode(value) end
  local parts = {}
  if #value > 0 then
    for i, each in ipairs(value) do parts[i] = json(each) end
    return '[' .. table.concat(parts, ',') .. ']'
  end
  for name, each in pairs(value) do parts[#parts + 1] = cjson.encode(name) .. ':' .. json(each) end
  return '{' .. table.concat(parts, ',') .. '}'
end
return json(state)
