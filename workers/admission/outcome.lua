-- Gives leases of one pool back with their outcomes; appends what the governor has to know to `events`.
-- An outcome is [id], if the call was not made or its end is not known, or [id, status, input tokens, output tokens,
-- readings (JSON text, '' for none), reporter, error].                      Model: workers/policy/admission.py, release
local BEFORE_MODEL = '^' .. string.rep('[^|]*|', 13)
local HEALTH_S = 60
local PROBE_HEARD_S = 5
local function number(text) return tonumber(text) or 0 end

-- How a model's calls ended lately: good ones of all, each worth e^(-age / HEALTH_S).     Read by: workers/admission/pool_state.py
local function note_health(state, model, good, now)
  state.health = state.health or {}
  local health = state.health[model]
  if not health then
    health = {good = 0, all = 0, at = now}
    state.health[model] = health
  end
  local kept = math.exp(math.min(0, health.at - now) / HEALTH_S)
  health.good, health.all = health.good * kept + (good and 1 or 0), health.all * kept + 1
  health.at = math.max(health.at, now)
end

-- The pool's outage: calls that failed in a row, with no answer to a later one, or nil. A refusal counts only for the
-- breaker's probe; other refusals neither count nor end it. `units` are the first few reporters.
--                                                                                      Read by: workers/admission/outages.py
local OUTAGE_UNITS = 8
local function note_outage(state, sent_at, now, fails, answers, status, reporter, error)
  local outage = state.outage
  if answers then
    state.answered_sent_at = math.max(state.answered_sent_at or 0, sent_at)
    if outage and sent_at > outage.since then state.outage = nil end
  elseif fails then
    local since = math.max(sent_at, state.answered_sent_at or 0)
    if not outage then
      outage = {since = since, failures = 0, units = {}}
      state.outage = outage
    end
    outage.since = math.min(outage.since, since)
    outage.failures, outage.at, outage.status, outage.error = outage.failures + 1, now, status, error
    local known = 0
    for _ in pairs(outage.units) do known = known + 1 end
    if known < OUTAGE_UNITS then outage.units['u' .. reporter] = 1 end
  end
end

local function give_back(params, state, books, outcomes, events, counters, now)
  local ids, trouble = {}, false
  for i, outcome in ipairs(outcomes) do ids[i] = outcome[1] end
  local found, freed = release(books.leases, books.holders, books.open, ids)
  for _, outcome in ipairs(outcomes) do
    local id, status = outcome[1], outcome[2]
    local holder = found[id]
    if holder then
      found[id] = nil
      local part = {}
      for field in string.gmatch(holder, '([^|]*)|') do part[#part + 1] = field end
      local model, sent_at = string.match(holder, BEFORE_MODEL .. '(.*)$'), number(part[5]) / 1000
      local standing = state.projects[part[3]]
      if standing then standing.open = math.max(0, standing.open - 1) end
      if id == state.probe then state.probe_until = math.min(state.probe_until, now + PROBE_HEARD_S) end
      local reserved = {1, number(part[8]), number(part[9])}
      if status and params then
        local used = {1, outcome[3], outcome[4]}
        local ok, refused = status >= 200 and status < 300, status == 429 or status == 529
        local failed = not refused and (status == 408 or status >= 500 or status < 100)
        settle(params, state, model, reserved, used, ok)
        note_health(state, model, ok, now)
        note_outage(state, sent_at, now, failed or (refused and part[7] == '1'), not failed and not refused, status,
                    outcome[6], outcome[7] or '')
        if refused then note_refusal(params, state, sent_at, now) end
        trouble = trouble or refused or failed
        counters['status:' .. status] = (counters['status:' .. status] or 0) + 1
        counters.input_tokens = (counters.input_tokens or 0) + used[2]
        counters.output_tokens = (counters.output_tokens or 0) + used[3]
        local spent = {number(part[11]), number(part[12]), number(part[13])}
        events[#events + 1] = {'done', id, now, sent_at, number(part[6]), status, model, spent, number(part[10]), used,
                               outcome[5], outcome[6], part[7] == '1'}
      elseif params then
        settle(params, state, model, reserved, {0, 0, 0}, false)
      end
    end
  end
  return freed, trouble
end
