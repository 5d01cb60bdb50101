-- The slots of all pools together: as many as the largest frozen limit of the running jobs. While they are short, a
-- pool with its share of them or more leaves the next to one with less: whoever gives a lease back asks in the same
-- step, and would otherwise keep what it has for ever.
local SHORT_MS = 1500

-- How many there are; 0 if no job runs.
local function all_slots(job_limits)
  local cap = 0
  for _, limit in ipairs(redis.call('HVALS', job_limits)) do cap = math.max(cap, tonumber(limit)) end
  return cap
end

local function open_calls(open, field) return tonumber(redis.call('HGET', open, field) or 0) end

-- As one pool finds them: {cap, all: open calls, pool: its own ones, share: of the pools that want more, behind: how
-- many of the others have less than that}. It is not among those itself, until it is refused again.
local function slots_of(pool, cap, open, short, now_ms)
  local totals = redis.call('HMGET', open, 'all', 'p:' .. pool)
  redis.call('ZREM', short, pool)
  local rivals = redis.call('ZRANGEBYSCORE', short, now_ms - SHORT_MS, '+inf')
  local share, behind = math.floor(cap / (1 + #rivals)), 0
  for _, rival in ipairs(rivals) do
    if open_calls(open, 'p:' .. rival) < share then behind = behind + 1 end
  end
  return {cap = cap, all = tonumber(totals[1] or 0), pool = tonumber(totals[2] or 0), share = share, behind = behind}
end

local function is_short(slots)
  return slots.all >= slots.cap or (slots.pool >= slots.share and slots.all >= slots.cap - slots.behind)
end
