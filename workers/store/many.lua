-- Lists of however many values: Lua's stack has room for some 8,000, as those of `unpack` and of a command are.
local TOGETHER = 4000  -- even, so that no pair is torn

-- A list's values from one on, to another if one is given.
local function rest(list, first, last)
  local found = {}
  for i = first, last or #list do found[#found + 1] = list[i] end
  return found
end

local function hmget_many(key, fields)
  if #fields <= TOGETHER then return redis.call('HMGET', key, unpack(fields)) end
  local found = {}
  for first = 1, #fields, TOGETHER do
    local some = redis.call('HMGET', key, unpack(fields, first, math.min(#fields, first + TOGETHER - 1)))
    for i = 1, #some do found[first + i - 1] = some[i] end
  end
  return found
end

local function change_many(command, key, args)
  for first = 1, #args, TOGETHER do
    redis.call(command, key, unpack(args, first, math.min(#args, first + TOGETHER - 1)))
  end
end
