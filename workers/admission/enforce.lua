-- The enforcer's decision about one call.                            Model: lab/simulation/enforcer.py, same names
--@include fairness.lua
--@include budgets.lua
--@include standings.lua
-- `state` is what one pool remembers between calls; `projects` its standings; times in seconds.
local function new_state()
  return {version = 0, refusals = 0, refused = 0, refused_at = 0, refused_sent_at = 0, paced_until = 0,
          last_sent_at = -1e9, held_by = '', probe = '', probed_break = 0, probe_until = 0, fills = {}, spent = {},
          projects = {}, asked_ms = 0, undecided = false, decider = ''}
end

-- A new decision takes back what was done about the refusals that it knows of.
local function obey(params, state)
  if state.version == params.version then return end
  local known = params.known_refusals or -1
  local unknown = known >= 0 and math.max(0, state.refusals - known) or 0
  state.version, state.refused = params.version, state.refused_sent_at > params.counts_after and unknown or 0
end

local function effective_limit(params, state, now)
  local limit = params.limit
  if state.refused > 0 then limit = math.min(limit, params.limit_if_refused) end
  if now > params.decided_at + params.stale_after_s then limit = math.min(limit, params.stale_limit) end
  return limit
end

-- The last calls of a queue try no small step out.
local SMALL_STEP = 0.9
local function limit_for(params, state, want, now)
  local limit = effective_limit(params, state, now)
  local is_small = params.limit_if_refused >= SMALL_STEP * params.limit
  return want.last and is_small and math.min(limit, params.limit_if_refused) or limit
end

local function is_turn(params, state, project, limit, tokens, now)
  local present = present_of(params, state, now)
  local rate_bound = state.held_by ~= '' and state.held_by ~= 'limit'
  return may_take(params, project, present, limit, rate_bound, 1 + tokens * params.token_scale)
end

-- Until when the grants so far fill the time, at the present pace: a slower one of before is forgotten.
local function paced_until(params, state)
  local latest = state.last_sent_at + params.burst_s + params.pace_s * (1 + params.pace_jitter)
  return math.min(state.paced_until, latest)
end

-- The pace and the budgets: what makes the call wait longest, and for how many seconds; nil if nothing does.
local function longest_wait(params, state, want, now)
  local wait, reason = 0, nil
  local function consider(seconds, name)
    if seconds > wait then wait, reason = seconds, name end
  end
  if (params.single_call_s or 0) > 0 then consider(state.last_sent_at + params.single_call_s - now, 'single_calls') end
  if params.pace_s > 0 then consider(paced_until(params, state) - params.burst_s - now, 'pacing') end
  for _, bucket in ipairs(params.buckets) do
    if bucket.model == '' or bucket.model == want.model then
      consider(bucket_wait(state, bucket, want.cost, now), bucket.name)
    end
  end
  if wait > 1e-9 then return reason, wait end
  return nil
end

-- nil, or the reason, after how many seconds to ask again (nil: nothing to wait for but a lease or a decision), and of
-- a project that has its part how many that are. `room` are the slots that other rules leave to this pool.
local function denial(params, state, want, open, room, now)
  if params.breaker ~= 'closed' then
    if now < params.breaker_until then return 'breaker', params.breaker_until - now end
    if state.probed_break == params.break_number and now < state.probe_until then return 'probe' end
    return nil
  end
  local limit = math.min(limit_for(params, state, want, now), room)
  if open >= limit then return 'limit' end
  local most = most_of(params, want.project, limit)
  if most and state.projects[want.project].open >= most then return 'project_max', nil, most end
  local hold_until = params.hold_until
  if state.refused >= params.stop_after then
    hold_until = math.max(hold_until, state.refused_at + params.feedback_s)
  end
  if now < hold_until then return 'judging', hold_until - now end
  if not is_turn(params, state, want.project, limit, want.input + want.output, now) then
    return 'fair_share', nil, shares(params, limit, present_of(params, state, now))[want.project]
  end
  return longest_wait(params, state, want, now)
end

-- What a grant changes; returns the model's counters just after the reservation.
local function take(params, state, want, probe, now)
  if probe then
    state.probe, state.probed_break, state.probe_until = want.id, params.break_number, now + params.probe_s
  end
  reserve(params, state, want.model, want.cost, now)
  if params.pace_s > 0 then
    local pace_s = params.pace_s * (1 + params.pace_jitter * want.jitter)
    state.paced_until = math.max(paced_until(params, state), now) + pace_s
  end
  state.last_sent_at, state.held_by = now, ''
  local spent = spend(state, want.model, want.cost, 1, want.until_s)
  if want.model ~= '' then spend(state, '', want.cost, 1, want.until_s) end
  local standing = state.projects[want.project]
  standing.open = standing.open + 1
  standing.service = standing.service + (1 + want.cost[2] + want.cost[3]) / weight_of(params, want.project)
  return spent
end

-- A counted refusal takes the pending step back and the saved-up credit with it, before any decision comes.
local function note_refusal(params, state, sent_at, now)
  if sent_at <= params.counts_after then return end
  obey(params, state)
  state.refusals, state.refused, state.refused_at = state.refusals + 1, state.refused + 1, now
  state.refused_sent_at = math.max(state.refused_sent_at, sent_at)
  for _, bucket in ipairs(params.buckets) do
    local fill = state.fills[bucket.name]
    if bucket.credit ~= 0 and fill then fill.level = math.min(fill.level, 0) end
  end
end
