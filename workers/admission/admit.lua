#!lua
-- admit.lua: give leases of one pool back, then grant or refuse new ones, in one step.   Model: workers/policy/admission.py
-- KEYS  1 clock  2 leases  3 holders  4 open  5 governor  6 job_limits  7 rates  8 waiting  9 events  10 counters
--       11 short  12 epoch  (keys.py)
-- ARGV  1 now_ms ("" = lease clock)  2 pool  3 node  4 ttl_ms  5 freed channel
--       6 JSON of outcomes (outcome.lua)  7 JSON [[lease id, job, project, model, input, output tokens, jitter], ...],
--       oldest first  8 most entries of the event stream  9 ms between decisions
--       10 epoch that the caller knows  11 grants it was told  12 grace ms  (epoch.lua)
-- Reply {open in pool, open in all, retry_after_ms (-1: when a lease is freed), reason, whether to decide now, limit,
--        projects present, {verdict, ...}, {reason, ...}, {retry_after_ms, ...}, epoch, grants told to this node,
--        {lease that is over, its holder, ...}, the number of the want that was granted as the breaker's probe (0: none),
--        {open calls of the want's project, ...}, {its part of the slots, or -1, ...} where that is why it was refused}
--       verdict 1 granted, 0 refused, 2 the job makes no calls any more: let it pass without a lease
-- While the slots of all pools together are short, a pool with its share of them or more leaves the next to one with
-- less: whoever gives a lease back asks in the same step, and would otherwise keep what it has for ever.
-- Holds: nothing is granted while the epoch is closed; granted implies open <= the pool's effective limit (a probe: any), <= the job's frozen limit, and in all
--        <= the largest frozen limit. Without parameters nothing is granted, and a decision is asked for.
--@include ../store/clock.lua
--@include ../store/epoch.lua
--@include release.lua
--@include fairness.lua
--@include ../store/many.lua
--@include budgets.lua
--@include enforce.lua
--@include outcome.lua
local DECIDER_LATE_MS, SHORT_MS = 150, 1500
local now_ms, pool, node = lease_clock(KEYS[1], ARGV[1]), ARGV[2], ARGV[3]
local now, wanted = now_ms / 1000, cjson.decode(ARGV[7])
local stored = redis.call('HMGET', KEYS[5], 'parameters', 'enforcement', 'next_at')
local params = stored[1] and cjson.decode(stored[1])
local state = stored[2] and cmsgpack.unpack(stored[2]) or new_state()
local epoch, closed_until = store_epoch(KEYS[12], ARGV[1], now_ms, node, tonumber(ARGV[10]), tonumber(ARGV[11]),
                                        tonumber(ARGV[12]))
local open_of = function(project) return tonumber(redis.call('HGET', KEYS[4], 'o:' .. pool .. '|' .. project) or 0) end
local events, counters = {}, {}
local function count(name) counters[name] = (counters[name] or 0) + 1 end

local cap = 0
for _, limit in ipairs(redis.call('HVALS', KEYS[6])) do cap = math.max(cap, tonumber(limit)) end
local was_full = tonumber(redis.call('HGET', KEYS[4], 'all') or 0) >= cap
local books = {leases = KEYS[2], holders = KEYS[3], open = KEYS[4]}
local given_back, trouble = give_back(params, state, books, cjson.decode(ARGV[6]), events, counters, now)
local expired = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now_ms, 'LIMIT', 0, 1000)
local over, freed = release(KEYS[2], KEYS[3], KEYS[4], expired)
freed = freed + given_back

if given_back > 0 then
  -- Calls per second, averaged over about 5 s: what planning measures its window by.
  local rate, at = string.match(redis.call('HGET', KEYS[7], pool) or '', '^(.-)|(.*)$')
  rate, at = tonumber(rate or 0), tonumber(at or now_ms)
  rate = rate * math.exp(-(now_ms - at) / 5000) + given_back / 5
  redis.call('HSET', KEYS[7], pool, string.format('%.6g|%d', rate, now_ms))
end

local names = {}
for project in pairs(state.projects) do names[#names + 1] = project end
if #names > 0 then
  local fields = {}
  for i, project in ipairs(names) do fields[i] = 'o:' .. pool .. '|' .. project end
  for i, open in ipairs(hmget_many(KEYS[4], fields)) do state.projects[names[i]].open = tonumber(open or 0) end
end

local totals = redis.call('HMGET', KEYS[4], 'all', 'p:' .. pool)
local open_all, open_pool = tonumber(totals[1] or 0), tonumber(totals[2] or 0)
local verdicts, reasons, waits, job_open, job_limit, change, probe_of = {}, {}, {}, {}, {}, {}, 0
local widths, parts = {}, {}
if params then obey(params, state) end

redis.call('ZREM', KEYS[11], pool)
local rivals = redis.call('ZRANGEBYSCORE', KEYS[11], now_ms - SHORT_MS, '+inf')
local pool_share, behind = math.floor(cap / (1 + #rivals)), 0
for _, rival in ipairs(rivals) do
  if tonumber(redis.call('HGET', KEYS[4], 'p:' .. rival) or 0) < pool_share then behind = behind + 1 end
end

-- Refusal by rules that are not the pool's; then nobody is made to wait for this project. (When all slots are taken
-- that is the reason to tell, though the job may be at its own limit too.)
local function barred(want)
  if now_ms < closed_until then return 'grace', (closed_until - now_ms) / 1000 end
  if not params then return 'no_parameters' end
  if open_all < cap and job_open[want.job] >= job_limit[want.job] then
    local standing = state.projects[want.project]
    if standing then standing.waiting = false end
    return 'job_limit'
  end
end

local function decide(want)
  forget_models(params, state, now)
  local standing = standing_of(params, state, want.project, open_of, now)
  local reason, wait, part
  if open_all >= cap or (open_pool >= pool_share and open_all >= cap - behind) then
    reason = 'total_limit'
    redis.call('ZADD', KEYS[11], now_ms, pool)
  else reason, wait, part = denial(params, state, want, open_pool, open_pool + cap - open_all, now) end
  standing.waiting = reason ~= nil and reason ~= 'project_max'  -- or others would be made to wait for it
  if standing.waiting then state.held_by = reason == 'total_limit' and 'limit' or reason end
  return reason, wait, part, standing.open
end

local function lease(want)
  local probe, held_by = params.breaker ~= 'closed', state.held_by
  events[#events + 1] = {'sent', want.id, now, open_pool, effective_limit(params, state, now), held_by, probe}
  local spent = take(params, state, want, probe, now)
  redis.call('ZADD', KEYS[2], now_ms + tonumber(ARGV[4]), want.id)
  redis.call('HSET', KEYS[3], want.id, string.format(
    '%s|%s|%s|%s|%d|%d|%d|%.17g|%.17g|%.17g|%.17g|%.17g|%.17g|%s', pool, want.job, want.project, node, now_ms, open_pool,
    probe and 1 or 0, want.cost[2], want.cost[3], want.input + want.output, spent[1], spent[2], spent[3], want.model))
  open_all, open_pool, job_open[want.job] = open_all + 1, open_pool + 1, job_open[want.job] + 1
  for _, field in ipairs({'all', 'p:' .. pool, 'j:' .. want.job, 'o:' .. pool .. '|' .. want.project}) do
    change[field] = (change[field] or 0) + 1
  end
  return probe
end

for i, given in ipairs(wanted) do
  local want = {id = given[1], job = given[2], project = given[3], model = given[4], input = given[5],
                output = given[6], jitter = given[7], until_s = now + tonumber(ARGV[4]) / 1000}
  if not job_open[want.job] then
    job_open[want.job] = tonumber(redis.call('HGET', KEYS[4], 'j:' .. want.job) or 0)
    job_limit[want.job] = tonumber(redis.call('HGET', KEYS[6], want.job) or -1)
  end
  verdicts[i], reasons[i], waits[i], widths[i], parts[i] = 0, '', -1, 0, -1
  local held = redis.call('HGET', KEYS[3], want.id)
  if held then  -- asked again, since the answer was lost
    verdicts[i] = 1
    if string.match(held, '^[^|]*|[^|]*|[^|]*|[^|]*|[^|]*|[^|]*|(%d)|') == '1' then probe_of = i end
  elseif job_limit[want.job] < 0 then verdicts[i] = 2
  else
    local reason, wait, part, width = barred(want)
    if not reason then
      want.cost = {1, want.input * params.token_scale, want.output * params.token_scale}
      reason, wait, part, width = decide(want)
    end
    if reason then
      widths[i], parts[i] = width or 0, part or -1
      reasons[i], waits[i] = reason, wait and math.ceil(wait * 1000 - 1e-6) or -1
      count('refused:' .. reason)
    else
      verdicts[i] = 1
      if lease(want) then probe_of = i end
    end
  end
end

local taken = change.all or 0
for field, by in pairs(change) do redis.call('HINCRBY', KEYS[4], field, by) end
local told = 'told:' .. node
if taken > 0 then
  counters.granted = taken
  told = redis.call('HINCRBY', KEYS[12], told, 1)
else told = tonumber(redis.call('HGET', KEYS[12], told) or 0) end
for name, by in pairs(counters) do redis.call('HINCRBYFLOAT', KEYS[10], name, by) end
if #events > 0 then
  redis.call('XADD', KEYS[9], 'MAXLEN', '~', ARGV[8], '*', 'events', cjson.encode(events))
  state.undecided = true
end

local retry_after, first_reason = -1, ''
for i, reason in ipairs(reasons) do
  if reason ~= '' and first_reason == '' then first_reason = reason end
  if waits[i] >= 0 and (retry_after < 0 or waits[i] < retry_after) then retry_after = waits[i] end
end
local next_at = tonumber(stored[3] or '')
if first_reason ~= '' and next_at then
  local due = math.max(1, math.ceil((next_at - now) * 1000))
  retry_after = retry_after < 0 and due or math.min(retry_after, due)
end

-- One node at a time is asked to decide; another only when that one is late.
local since = now_ms - state.asked_ms - (state.decider == node and 0 or DECIDER_LATE_MS)
local due = state.undecided or (next_at and now >= next_at) or not params
local ask = (due and since >= tonumber(ARGV[9])) or (trouble and now_ms > state.asked_ms + 5)
if ask then state.asked_ms, state.decider, state.undecided = now_ms, node, false end
redis.call('HSET', KEYS[5], 'enforcement', cmsgpack.pack(state))

local place = pool .. '|' .. node
if first_reason ~= '' then redis.call('ZADD', KEYS[8], now_ms, place) else redis.call('ZREM', KEYS[8], place) end
if freed > taken then
  redis.call('ZREMRANGEBYSCORE', KEYS[8], '-inf', now_ms - 5000)
  if redis.call('ZCARD', KEYS[8]) > 0 then
    redis.call('PUBLISH', ARGV[5], (was_full or #expired > 0) and '*' or pool)
  end
end
local limit, present = params and effective_limit(params, state, now) or 0, 0
for _, standing in pairs(state.projects) do
  if standing.open > 0 or (params and now <= standing.asked_at + params.demand_ttl_s) then present = present + 1 end
end
return {open_pool, open_all, retry_after, first_reason, ask and 1 or 0, limit, present, verdicts, reasons, waits,
        epoch, told, told_of(over), probe_of, widths, parts}
