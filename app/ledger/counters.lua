-- A job's counters.

-- Adds {field: number} to a job's counters, if there is the job; returns what they are then, and further fields.
local function count(job, counters, further)
  local names, found, changes = {'state'}, {}, {}
  for name, by in pairs(counters) do
    if by ~= 0 then names[#names + 1] = name end
  end
  for _, name in ipairs(further or {}) do names[#names + 1] = name end
  local values = redis.call('HMGET', job, unpack(names))
  for i, name in ipairs(names) do
    local by = counters[name] or 0
    if by ~= 0 and values[1] then
      found[name] = tonumber(values[i] or 0) + by
      changes[#changes + 1], changes[#changes + 2] = name, string.format('%d', found[name])
    else found[name] = values[i] end
  end
  if #changes > 0 then redis.call('HSET', job, unpack(changes)) end
  return found
end
