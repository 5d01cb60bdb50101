-- Gives leases of one pool back with their outcomes; appends what the governor has to know to `events`.
-- An outcome is [id, further ms], if the call was not made or its end is not known, or [id, further ms, status, input
-- tokens, output tokens, readings (JSON text, '' for none), reporter, error]. Further ms from 0 on: the call was cut,
-- and its lease counts on (release.lua); below: the lease is free.          Model: lab/simulation/enforcer.py, release
--@include release.lua
--@include budgets.lua
--@include enforce.lua
--@include health.lua
local PROBE_HEARD_S = 5

-- What a status says: whether the call was answered well, refused, or failed; none of them: answered with an error, or
-- (204) with a success that holds no answer.
local function ending_of(status)
  local refused = status == 429 or status == 529
  local failed = not refused and (status == 408 or status >= 500 or status < 100)
  return status >= 200 and status < 300 and status ~= 204, refused, failed
end

-- A call that was made: settles its budgets and counts it. Returns whether the governor is to hear of it soon.
local function note_end(params, state, holder, outcome, events, counters, now)
  local id, _, status, input, output, readings, reporter, error = unpack(outcome)
  local sent_at, used = holder.sent_ms / 1000, {1, input, output}
  local ok, refused, failed = ending_of(status)
  settle(params, state, holder.model, holder.reserved, used, ok)
  note_health(state, holder.model, ok, math.max(0, now - sent_at), now)
  if refused then note_refused_model(state, holder.model, now) end
  note_outage(state, sent_at, now, {fails = failed or (refused and holder.probe), answers = not failed and not refused,
                                    status = status, reporter = reporter, error = error or ''})
  if refused then note_refusal(params, state, sent_at, now) end
  for name, by in pairs({['status:' .. status] = 1, input_tokens = input, output_tokens = output}) do
    counters[name] = (counters[name] or 0) + by
  end
  events[#events + 1] = {'done', id, now, sent_at, holder.open_before, status, holder.model, holder.spent,
                         holder.estimate, used, readings, reporter, holder.probe}
  return refused or failed
end

-- Returns how many leases are really free again, and whether a call was refused or failed.
local function give_back(params, state, books, outcomes, events, counters, now)
  local ended, cut, further_ms, trouble = {}, {}, {}, false
  for _, outcome in ipairs(outcomes) do
    local ids = outcome[2] < 0 and ended or cut
    ids[#ids + 1], further_ms[outcome[1]] = outcome[1], outcome[2]
  end
  local found, freed = release(books, ended)
  local kept = keep_cut(books, cut, further_ms, math.floor(now * 1000 + 0.5))
  for _, outcome in ipairs(outcomes) do
    local id, status = outcome[1], outcome[3]
    local holder = found[id] or kept[id]
    if holder then
      found[id] = nil
      local standing = not kept[id] and state.projects[holder.project]
      kept[id] = nil
      if standing then standing.open = math.max(0, standing.open - 1) end
      if id == state.probe then state.probe_until = math.min(state.probe_until, now + PROBE_HEARD_S) end
      if status and params then
        trouble = note_end(params, state, holder, outcome, events, counters, now) or trouble
      elseif params then
        settle(params, state, holder.model, holder.reserved, {0, 0, 0}, false)
      end
    end
  end
  return freed, trouble
end
