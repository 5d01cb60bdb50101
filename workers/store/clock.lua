-- The server's wall clock in ms: for dates that people read, never for deadlines.
local function wall_clock(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The lease clock in ms: Redis TIME, except that one step moves it by at most 5 s and never back. A jump of the
-- server's clock then neither ends leases early nor fills buckets; after a quiet hour leases only live longer.
-- Tests pass `given`. The new reading is stored only every 250 ms, since a write per call is not needed for that.
local function lease_clock(key, given)
  if given ~= '' then return tonumber(given) end
  local wall = wall_clock('')
  local last = redis.call('HMGET', key, 'wall', 'now')
  if not last[1] then
    redis.call('HSET', key, 'wall', wall, 'now', wall)
    return wall
  end
  local step = wall - tonumber(last[1])
  local now = tonumber(last[2]) + math.max(0, math.min(5000, step))
  if step < 0 or step >= 250 then redis.call('HSET', key, 'wall', wall, 'now', now) end
  return now
end
