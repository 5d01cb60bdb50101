-- One want's answer: a lease with all that it changes, or why there is none.
-- `step` is what one admission knows: {keys and arguments of admit.lua, params, state, now, closed_until, slots, jobs,
-- change: of the counts in `open`, events, held: records of open leases by id; of those that are granted, expiries:
-- {expiry, lease id, ...} and records: {lease id, record, ...}}.
--@include enforce.lua
--@include release.lua
--@include slots.lua
local REFUSED, GRANTED, PASS = 0, 1, 2

-- A job's open calls and its frozen limit, nil if it makes no calls any more.
local function job_of(step, name)
  local job = step.jobs[name]
  if not job then
    local limit = redis.call('HGET', step.job_limits, name)
    job = {open = open_calls(step.open, 'j:' .. name), limit = tonumber(limit or nil)}
    step.jobs[name] = job
  end
  return job
end

-- Refusal by rules that are not the pool's; then nobody is made to wait for this project. (When all slots are taken
-- that is the reason to tell, though the job may be at its own limit too.)
local function barred(step, want)
  if step.now_ms < step.closed_until then return 'grace', (step.closed_until - step.now_ms) / 1000 end
  if not step.params then return 'no_parameters' end
  local job = job_of(step, want.job)
  if step.slots.all < step.slots.cap and job.open >= job.limit then
    local standing = step.state.projects[want.project]
    if standing then standing.waiting = false end
    return 'job_limit'
  end
end

-- Refusal by the slots of all pools and by the pool's own rules: reason, seconds, the project's part where that is the
-- reason, and its open calls.
local function denied(step, want)
  local params, state, slots = step.params, step.state, step.slots
  forget_models(params, state, step.now)
  local function open_of(project) return open_calls(step.open, 'o:' .. step.pool .. '|' .. project) end
  local standing = standing_of(params, state, want.project, open_of, step.now)
  local reason, wait, part
  if is_short(slots) then
    reason = 'total_limit'
    redis.call('ZADD', step.short, step.now_ms, step.pool)
  else reason, wait, part = denial(params, state, want, slots.pool, slots.pool + slots.cap - slots.all, step.now) end
  standing.waiting = reason ~= nil and reason ~= 'project_max'  -- or others would be made to wait for it
  if standing.waiting then state.held_by = reason == 'total_limit' and 'limit' or reason end
  return reason, wait, part, standing.open
end

local function append(list, first, second) list[#list + 1], list[#list + 2] = first, second end

-- Returns whether the lease is the breaker's probe.
local function lease(step, want)
  local params, state, slots = step.params, step.state, step.slots
  local probe, held_by = params.breaker ~= 'closed', state.held_by
  step.events[#step.events + 1] =
    {'sent', want.id, step.now, slots.pool, effective_limit(params, state, step.now), held_by, probe}
  local spent = take(params, state, want, probe, step.now)
  local record = cjson.encode({
    pool = step.pool, job = want.job, project = want.project, model = want.model, node = step.node,
    sent_ms = step.now_ms, probe = probe, cut_frees = step.cut_frees, open_before = slots.pool,
    estimate = want.input + want.output, reserved = want.cost, spent = {spent[1], spent[2], spent[3]},
  })
  step.held[want.id] = record
  append(step.expiries, step.now_ms + step.ttl_ms, want.id)
  append(step.records, want.id, record)
  slots.all, slots.pool, step.jobs[want.job].open = slots.all + 1, slots.pool + 1, step.jobs[want.job].open + 1
  for _, field in ipairs(counts_of(step.pool, want.job, want.project)) do
    step.change[field] = (step.change[field] or 0) + 1
  end
  return probe
end

-- {verdict, probe: whether it tries the pool, reason, wait_ms, open calls and part of the want's project}
local function answer(step, want)
  local held = step.held[want.id]
  if held then return {verdict = GRANTED, probe = holder_of(held).probe} end  -- asked again, for the answer was lost
  if not job_of(step, want.job).limit then return {verdict = PASS} end
  local reason, wait, part, open = barred(step, want)
  if not reason then
    want.cost = {1, want.input * step.params.token_scale, want.output * step.params.token_scale}
    reason, wait, part, open = denied(step, want)
  end
  if not reason then return {verdict = GRANTED, probe = lease(step, want)} end
  local wait_ms = wait and math.ceil(wait * 1000 - 1e-6)
  return {verdict = REFUSED, reason = reason, wait_ms = wait_ms, open = open, part = part}
end
