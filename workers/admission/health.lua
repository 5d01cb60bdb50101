-- How a pool's calls have ended lately, by model and since its outage began: for people, and for those who choose a
-- pool.
local HEALTH_S, OUTAGE_UNITS = 60, 8
local ALONE, MOST_ALONE, ALONE_S = 0.95, 10, 600

-- A model's good calls of all, each worth e^(-age / HEALTH_S), and the seconds that the good ones took, from the lease
-- to its return.                                                                          Read by: pool_state.py
local function note_health(state, model, good, took, now)
  state.health = state.health or {}
  local health = state.health[model]
  if not health then
    health = {good = 0, all = 0, at = now}
    state.health[model] = health
  end
  local kept = math.exp(math.min(0, health.at - now) / HEALTH_S)
  local seconds = health.took or took * health.good  -- written before these were counted
  health.took = seconds * kept + (good and took or 0)
  health.good, health.all = health.good * kept + (good and 1 or 0), health.all * kept + 1
  health.at = math.max(health.at, now)
end

-- How much more likely the refusals so far are if a share of ALONE of them is this model's than if each call may be
-- refused as likely as any other: the logarithm, but no less than 0, after Page (1954). It fades within ALONE_S without
-- refusals.                                                                                Read by: pool_state.py
local function note_refused_model(state, model, now)
  local calls, all = {}, 0
  for name, health in pairs(state.health) do
    calls[name] = health.all * math.exp(math.min(0, health.at - now) / HEALTH_S)
    all = all + calls[name]
  end
  for name, health in pairs(state.health) do
    local share = math.min(calls[name] / all, 1)
    local factor = name == model and ALONE / math.max(share, 1e-3) or (1 - ALONE) / math.max(1 - share, 1e-3)
    local before = (health.alone or 0) * math.exp(math.min(0, (health.alone_at or now) - now) / ALONE_S)
    health.alone, health.alone_at = math.max(0, math.min(MOST_ALONE, before + math.log(factor))), now
  end
end

-- The pool's outage: calls that failed in a row, with no answer to a later one, or nil. `call` is {fails,
-- answers, status, reporter, error}: a refusal counts only for the breaker's probe; other refusals neither count nor
-- end it. `units` are the first few reporters.                                                 Read by: pool_state.py
local function note_outage(state, sent_at, now, call)
  local outage = state.outage
  if call.answers then
    state.answered_sent_at = math.max(state.answered_sent_at or 0, sent_at)
    if outage and sent_at > outage.since then state.outage = nil end
  elseif call.fails then
    local since = math.max(sent_at, state.answered_sent_at or 0)
    if not outage then
      outage = {since = since, failures = 0, units = {}}
      state.outage = outage
    end
    outage.since = math.min(outage.since, since)
    outage.failures, outage.at, outage.status, outage.error = outage.failures + 1, now, call.status, call.error
    local known = 0
    for _ in pairs(outage.units) do known = known + 1 end
    if known < OUTAGE_UNITS then outage.units['u' .. call.reporter] = 1 end
  end
end
