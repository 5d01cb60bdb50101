-- Budgets that refill: levels, reservations, settlement.             Model: lab/simulation/enforcer.py, same names
-- A cost is {requests, input tokens, output tokens}. Times are seconds here, as in the parameters.
local MAX_WAIT_S, CATCH_UP_S, SWEEP_S, HEALTH_KEPT_S = 5, 0.05, 10, 600

local function amount(unit, cost)
  if unit == 'requests' then return cost[1] end
  if unit == 'input_tokens' then return cost[2] end
  if unit == 'output_tokens' then return cost[3] end
  return cost[2] + cost[3]
end

local function net_refill(bucket)
  return math.max(0.05 * bucket.refill_per_s, bucket.refill_per_s - bucket.drain_per_s)
end

local function pace(bucket, level)
  local share, gain = level / bucket.capacity, 1
  if share >= bucket.reserve then
    gain = 1 + (bucket.surplus_gain - 1) * math.min(1, (share - bucket.reserve) / 0.2)
  else
    gain = math.max(0.1, share / bucket.reserve)
  end
  return math.max(1e-9, gain * net_refill(bucket))
end

-- When a bucket that is full again at once was so last, and will be next; 0: not yet, not known.
local function last_full(bucket, now)
  local full_at, every = bucket.full_at or 0, bucket.full_every_s or 0
  if full_at <= 0 or now < full_at then return 0 end
  if every <= 0 then return full_at end
  return full_at + math.floor((now - full_at) / every) * every
end

local function next_full(bucket, now)
  local full_at, every = bucket.full_at or 0, bucket.full_every_s or 0
  if full_at <= 0 or now < full_at then return full_at end
  return every > 0 and last_full(bucket, now) + every or 0
end

-- The bucket's fill brought to `now`, dated anew first if the governor has a newer snapshot.
local function refilled(state, bucket, now)
  local fill = state.fills[bucket.name]
  if not fill then
    fill = {level = bucket.capacity, at = now, snapshot = -1, credit = bucket.credit, next_at = 0, full_at = 0}
    state.fills[bucket.name] = fill
  end
  local net = bucket.refill_per_s - bucket.drain_per_s
  local full_at = last_full(bucket, now)
  if full_at > (fill.full_at or 0) then
    fill.full_at = full_at
    if full_at > bucket.dated_at then fill.level, fill.at = bucket.capacity, now end
  end
  if fill.snapshot ~= bucket.snapshot then
    fill.snapshot = bucket.snapshot
    if bucket.snapshot > 0 and bucket.dated_at >= (fill.full_at or 0) then
      local since = amount(bucket.unit, state.spent[bucket.model] or {0, 0, 0}) - bucket.spent
      local dated = math.min(bucket.capacity, bucket.level + net * (now - bucket.dated_at))
      fill.level = math.min(bucket.capacity, dated - since)  -- the counters may have begun anew since
      fill.at = now
    end
  end
  local grown = math.min(bucket.capacity, fill.level + net * math.max(0, now - fill.at))
  fill.level = math.max(fill.level, grown) + bucket.credit - fill.credit
  fill.credit, fill.at = bucket.credit, now
  return fill
end

local function bucket_wait(state, bucket, cost, now)
  local fill = refilled(state, bucket, now)
  local need = math.min(amount(bucket.unit, cost), bucket.capacity)
  if fill.level >= need then
    if not bucket.paced or fill.next_at <= now then return 0 end
    -- A slower pace of before is forgotten.
    fill.next_at = math.min(fill.next_at, now + need / pace(bucket, fill.level))
    return fill.next_at - now
  end
  local wait = math.min(MAX_WAIT_S, (need - fill.level) / math.max(1e-9, net_refill(bucket)))
  local full_at = next_full(bucket, now)
  return full_at > 0 and math.min(wait, full_at - now) or wait
end

local function reserve(params, state, model, cost, now)
  for _, bucket in ipairs(params.buckets) do
    if bucket.model == '' or bucket.model == model then
      local fill, taken = refilled(state, bucket, now), amount(bucket.unit, cost)
      fill.level = fill.level - taken
      if bucket.paced then
        fill.next_at = math.max(fill.next_at, now - CATCH_UP_S) + taken / pace(bucket, fill.level)
      end
    end
  end
end

-- A model's counters, and until when a call of it may be open: its last lease's end.
local function spend(state, model, cost, sign, until_s)
  local spent = state.spent[model] or {0, 0, 0}
  state.spent[model] = {spent[1] + sign * cost[1], spent[2] + sign * cost[2], spent[3] + sign * cost[3],
                        math.max(spent[4] or 0, until_s)}
  return state.spent[model]
end

-- Keeps the tables of models bounded: one that no bucket needs, and that no call is open for, begins anew.
local function forget_models(params, state, now)
  if now < (state.swept_at or 0) + SWEEP_S then return end
  state.swept_at = now
  local needed = {[''] = true}
  for _, bucket in ipairs(params.buckets) do needed[bucket.model] = true end
  for model, spent in pairs(state.spent) do
    if not needed[model] and (spent[4] or 0) < now then state.spent[model] = nil end
  end
  for model, health in pairs(state.health or {}) do
    if now > health.at + HEALTH_KEPT_S then state.health[model] = nil end
  end
end

-- Tokens that were reserved and not used come back; requests never do.
local function settle(params, state, model, reserved, used, ok)
  if ok and used[2] + used[3] <= 0 then return end
  local back = {0, reserved[2] - (ok and used[2] or 0), reserved[3] - (ok and used[3] or 0)}
  for _, name in ipairs(model == '' and {''} or {model, ''}) do
    if state.spent[name] then spend(state, name, back, -1, 0) end
  end
  for _, bucket in ipairs(params.buckets) do
    local fill = state.fills[bucket.name]
    if fill and (bucket.model == '' or bucket.model == model) then
      fill.level = math.min(math.max(bucket.capacity, fill.level), fill.level + amount(bucket.unit, back))
    end
  end
end
