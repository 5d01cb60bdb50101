-- Gives leases back and keeps the counts equal to the leases: `holders` tells what each one counted for, so a lease
-- that is gone already (expired, given back twice) changes nothing. Returns how many were really open.
local function release(leases_key, holders_key, open_key, ids)
  local freed, change = 0, {}
  for _, id in ipairs(ids) do
    local holder = redis.call('HGET', holders_key, id)
    if holder then
      local pool, job = string.match(holder, '^([^|]*)|([^|]*)|')
      redis.call('HDEL', holders_key, id)
      redis.call('ZREM', leases_key, id)
      freed = freed + 1
      change['p:' .. pool] = (change['p:' .. pool] or 0) - 1
      change['j:' .. job] = (change['j:' .. job] or 0) - 1
    end
  end
  if freed > 0 then change.all = -freed end
  for field, by in pairs(change) do
    if redis.call('HINCRBY', open_key, field, by) == 0 then redis.call('HDEL', open_key, field) end
  end
  return freed
end
