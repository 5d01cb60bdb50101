-- A unit's state in its page, 'fence|owner|attempts|requeues|calls|deaths|since|at': since and at are
-- the ms of its first and its last claim; an owner of '' has given it up.
-- `calls` counts the claims that led to a paid call: it is written before the call, so it is also the intent.
local function read_unit(page, position)
  local text = redis.call('HGET', page, 'u:' .. position)
  if not text then return nil end
  local fence, owner, attempts, requeues, calls, deaths, since, at =
    string.match(text, '^(%d+)|(.-)|(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|(%d+)$')
  return {fence = tonumber(fence), owner = owner, attempts = tonumber(attempts), requeues = tonumber(requeues),
          calls = tonumber(calls), deaths = tonumber(deaths), since = tonumber(since), at = tonumber(at)}
end

local function write_unit(page, position, u)
  redis.call('HSET', page, 'u:' .. position, string.format('%d|%s|%d|%d|%d|%d|%d|%d',
    u.fence, u.owner, u.attempts, u.requeues, u.calls, u.deaths, u.since, u.at))
end

-- Adds {field: number} to a job's counters.
local function count(job, counters)
  for field, by in pairs(counters) do
    if by ~= 0 then redis.call('HINCRBY', job, field, by) end
  end
end

-- Whether a unit is in the hands of a living node. A claim that outlives the longest call has lost its task.
local function in_living_hands(u, beacons, now, claim_ms)
  return u.owner ~= '' and now - u.at < claim_ms and redis.call('EXISTS', beacons .. u.owner) == 1
end
