-- How many messages stand for each pool that nobody works on yet; a pool without any has no field.
local function count_assigned(assigned, pool, by)
  if by ~= 0 and redis.call('HINCRBY', assigned, pool, by) <= 0 then redis.call('HDEL', assigned, pool) end
end

-- Takes back what the messages of a page count for.
local function unassign_page(assignments, assigned)
  for _, pool in ipairs(redis.call('HVALS', assignments)) do count_assigned(assigned, pool, -1) end
end
