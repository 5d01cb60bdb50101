#!lua
-- admit.lua: give leases of one pool back, then grant or refuse new ones, in one step. Its model is
-- lab/simulation/enforcer.py, but for leases of calls that were cut.
-- KEYS  1 clock  2 leases  3 holders  4 open  5 governor  6 job_limits  7 rates  8 waiting  9 events  10 counters
--       11 short  12 epoch  13 orders  (../store/keys.py)
-- ARGV  1 now_ms ("" = lease clock)  2 pool  3 node  4 ttl_ms  5 freed channel
--       6 JSON of outcomes (outcome.lua)  7 JSON [[lease id, job, project, model, input, output tokens, jitter,
--       last], ...], oldest first  8 most entries of the event stream  9 ms between decisions
--       10 epoch that the caller knows  11 grants it was told  12 grace ms  (../store/epoch.lua)
--       13 '1' if the pool's provider ends a call when its connection is closed
-- Reply {open in pool, open in all, retry_after_ms (-1: when a lease is freed), reason, whether to decide now, limit,
--        projects present, {verdict, ...}, {reason, ...}, {retry_after_ms, ...}, epoch, grants told to this node,
--        {lease that is over, its holder, ...}, the number of the want that was granted as the breaker's probe (0:
--        none), {open calls of the want's project, ...}, {its part of the slots, or -1, ...} where that is why it was
--        refused}
--       verdict 1 granted, 0 refused, 2 the job makes no calls any more: let it pass without a lease
-- Holds: nothing is granted while the epoch is closed; granted implies open <= the pool's effective limit (a probe:
--        any), <= the job's frozen limit, and in all <= the largest frozen limit. Without parameters nothing is
--        granted, and a decision is asked for. To a node that has an order (../nodes/registry.py) nothing is granted.
--@include ../store/clock.lua
--@include ../store/epoch.lua
--@include memory.lua
--@include outcome.lua
--@include rate.lua
--@include slots.lua
--@include grant.lua
--@include waiting.lua
local clock, leases, holders, open, governor, job_limits, rates, waiting, event_stream, counts, short, epoch_key,
  orders = unpack(KEYS)
local given_ms, pool, node, ttl_ms, freed_channel, outcomes, wants, events_max, decide_every_ms, known_epoch,
  known_grants, grace_ms, cut_frees = unpack(ARGV)
outcomes, wants = cjson.decode(outcomes), cjson.decode(wants)
ttl_ms, decide_every_ms = tonumber(ttl_ms), tonumber(decide_every_ms)
known_epoch, known_grants, grace_ms = tonumber(known_epoch), tonumber(known_grants), tonumber(grace_ms)

-- Give back: what the caller returns, and what is over.
local now_ms = lease_clock(clock, given_ms)
local now = now_ms / 1000
local params, state, next_at = remembered(governor)
local epoch, closed_until = store_epoch(epoch_key, given_ms, now_ms, node, known_epoch, known_grants, grace_ms)
local books, events, counters = {leases = leases, holders = holders, open = open}, {}, {}
local cap = all_slots(job_limits)
local was_full = open_calls(open, 'all') >= cap
local returned, trouble = give_back(params, state, books, outcomes, events, counters, now)
local expired, over = release_expired(books, now_ms)
if returned > 0 then note_rate(rates, pool, returned, now_ms) end

-- Grant or refuse, the oldest first.
count_open(state, open, pool)
if params then obey(params, state) end
local slots = slots_of(pool, cap, open, short, now_ms)
local wanted = {}
for i, want in ipairs(wants) do wanted[i] = want[1] end
local step = {
  pool = pool, node = node, ttl_ms = ttl_ms, cut_frees = cut_frees == '1', open = open, job_limits = job_limits,
  short = short, params = params, state = state, now = now, now_ms = now_ms, closed_until = closed_until,
  slots = slots, jobs = {}, change = {}, events = events, held = read_holders(holders, wanted), expiries = {},
  records = {},
}
local verdicts, reasons, waits, widths, parts, probe = {}, {}, {}, {}, {}, 0
local retry_after, first_reason = -1, ''
local ordered = #wants > 0 and redis.call('HEXISTS', orders, node) == 1
for i, want in ipairs(wants) do
  local found = ordered and {verdict = 0, reason = 'cordoned'} or answer(step, {
    id = want[1], job = want[2], project = want[3], model = want[4], input = want[5], output = want[6],
    jitter = want[7], last = want[8], until_s = now + ttl_ms / 1000,
  })
  verdicts[i], reasons[i], waits[i] = found.verdict, found.reason or '', found.wait_ms or -1
  widths[i], parts[i] = found.open or 0, found.part or -1
  if found.probe then probe = i end
  if found.reason then
    counters['refused:' .. found.reason] = (counters['refused:' .. found.reason] or 0) + 1
    if first_reason == '' then first_reason = found.reason end
  end
  if waits[i] >= 0 and (retry_after < 0 or waits[i] < retry_after) then retry_after = waits[i] end
end
if first_reason ~= '' and next_at then
  local due = math.max(1, math.ceil((next_at - now) * 1000))
  retry_after = retry_after < 0 and due or math.min(retry_after, due)
end

-- Write down what has changed.
local granted = step.change.all or 0
change_many('ZADD', leases, step.expiries)
change_many('HSET', holders, step.records)
for field, by in pairs(step.change) do redis.call('HINCRBY', open, field, by) end
if granted > 0 then counters.granted = granted end
local told = note_told(epoch_key, node, granted > 0)
for name, by in pairs(counters) do redis.call('HINCRBYFLOAT', counts, name, by) end
if #events > 0 then
  redis.call('XADD', event_stream, 'MAXLEN', '~', events_max, '*', 'events', cjson.encode(events))
  state.undecided = true
end
local decide = is_to_decide(params, state, next_at, node, trouble, decide_every_ms, now_ms)
remember(governor, state)
note_waiting(waiting, pool .. '|' .. node, first_reason ~= '', now_ms)
if returned + expired > granted then
  tell_freed(waiting, freed_channel, (was_full or expired > 0) and '*' or pool, now_ms)
end
local limit = params and effective_limit(params, state, now) or 0
local present = projects_present(params, state, now)
return {slots.pool, slots.all, retry_after, first_reason, decide and 1 or 0, limit, present, verdicts, reasons,
        waits, epoch, told, over, probe, widths, parts}
