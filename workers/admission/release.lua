-- Takes leases out of the books and keeps the counts equal to the leases. `holders` tells what each one counted for, so
-- a lease that is gone already (expired, given back twice) changes nothing. A holder is fields joined by '|':
-- pool, job, project, node, sent ms, open before, probe, reserved input and output tokens, estimated tokens, the
-- model's counters just after the reservation (requests, input, output tokens), model. Returns the holders that were really open, by id.
local function release(leases_key, holders_key, open_key, ids)
  local found, freed, change = {}, 0, {}
  for _, id in ipairs(ids) do
    local holder = redis.call('HGET', holders_key, id)
    if holder then
      local pool, job, project = string.match(holder, '^([^|]*)|([^|]*)|([^|]*)|')
      redis.call('HDEL', holders_key, id)
      redis.call('ZREM', leases_key, id)
      found[id], freed = holder, freed + 1
      for _, field in ipairs({'p:' .. pool, 'j:' .. job, 'o:' .. pool .. '|' .. project}) do
        change[field] = (change[field] or 0) - 1
      end
    end
  end
  if freed > 0 then change.all = -freed end
  for field, by in pairs(change) do
    if redis.call('HINCRBY', open_key, field, by) <= 0 then redis.call('HDEL', open_key, field) end
  end
  return found, freed
end

-- As a script replies: {id, holder, ...}
local function told_of(found)
  local flat = {}
  for id, holder in pairs(found) do flat[#flat + 1] = id; flat[#flat + 1] = holder end
  return flat
end
