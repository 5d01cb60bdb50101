-- What the scripts remember of a pool between admissions (hash `governor`, field `enforcement`), beside what the
-- governor decided; and when it is to decide anew.
--@include enforce.lua
local DECIDER_LATE_MS = 150

-- The parameters in force, nil before the first decision; the enforcement state; when a decision is due by itself, s.
local function remembered(governor)
  local params, state, next_at = unpack(redis.call('HMGET', governor, 'parameters', 'enforcement', 'next_at'))
  params, state = params and cjson.decode(params) or nil, state and cmsgpack.unpack(state) or new_state()
  state.refusals, state.refused_sent_at = state.refusals or 0, state.refused_sent_at or 0  -- written by 0.1.0
  return params, state, tonumber(next_at or nil)
end

local function remember(governor, state) redis.call('HSET', governor, 'enforcement', cmsgpack.pack(state)) end

-- Whether this asker is to see to a decision. One node at a time is; another only when that one is late.
local function is_to_decide(params, state, next_at, node, trouble, every_ms, now_ms)
  local since = now_ms - state.asked_ms - (state.decider == node and 0 or DECIDER_LATE_MS)
  local due = state.undecided or (next_at and now_ms / 1000 >= next_at) or not params
  if not ((due and since >= every_ms) or (trouble and now_ms > state.asked_ms + 5)) then return false end
  state.asked_ms, state.decider, state.undecided = now_ms, node, false
  return true
end
