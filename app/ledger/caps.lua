-- What a job that must keep caps or budgets has reserved for its open calls, field v:<page's key>|<position>:<fence> of
-- the job = '<picos>,<tokens>,<state>,<day>,<purses>': the position and the fence are those of the call's first unit;
-- state o = its end is awaited, d = its worker is believed dead; day and purses are those in which it is reserved, too.
-- The sums are reserved_cost, _tokens and _calls, and for the second state unheard_cost, _tokens and _calls: what may
-- have been paid for, and counts as paid until somebody tells.
-- `short` = '<picos>,<tokens>': the most that was asked for and did not fit; nobody gets less room than that, so that
-- short texts are not preferred. `capped`: the cap that is met, for good, or 'budget <purse>', whose total is.
-- `purses:<agent>.<deployment>`: where calls at a place count, as submitted; none where the place has no price.
-- Holds: what is paid, reserved or unheard is never more than a cap.
--@include purses.lua
local MEASURES = {'cost', 'tokens', 'calls'}
local STANDING = {'capped', 'short', 'max_cost', 'reserved_cost', 'unheard_cost', 'spent', 'unknown', 'max_tokens',
                  'reserved_tokens', 'unheard_tokens', 'tokens_in', 'tokens_out', 'unknown_tokens', 'max_calls',
                  'reserved_calls', 'unheard_calls', 'calls'}
local COUNTING = {  -- against each cap
  {'max_cost', 'reserved_cost', 'unheard_cost', 'spent', 'unknown'},
  {'max_tokens', 'reserved_tokens', 'unheard_tokens', 'tokens_in', 'tokens_out', 'unknown_tokens'},
  {'max_calls', 'reserved_calls', 'unheard_calls', 'calls'},
}

local function reservation_of(page, position, fence) return string.format('v:%s|%d:%d', page, position, fence) end

local function read_reservation(text)
  local cost, tokens, state, day, purses = string.match(text, '^(%d+),(%d+),(%a),?(%d*),?(.*)$')
  return tonumber(cost), tonumber(tokens), state, tonumber(day), purses
end

local function reservation(cost, tokens, state, day, purses)
  return string.format('%d,%d,%s,%s,%s', cost, tokens, state, day or '', purses)
end

-- An open call's worker is believed dead.
local function leave_reservation(job, field, text)
  local cost, tokens, state, day, purses = read_reservation(text)
  if state ~= 'o' then return end
  local sizes = {cost = cost, tokens = tokens, calls = 1}
  for _, measure in ipairs(MEASURES) do
    redis.call('HINCRBY', job, 'reserved_' .. measure, string.format('%d', -sizes[measure]))
    redis.call('HINCRBY', job, 'unheard_' .. measure, string.format('%d', sizes[measure]))
  end
  local changes = {}
  for name in string.gmatch(purses, '%S+') do
    changes[#changes + 1], changes[#changes + 2] = {name, day, 'reserved', -cost}, {name, day, 'unknown', cost}
  end
  change_purses(job, changes)
  redis.call('HSET', job, field, reservation(cost, tokens, 'd', day, purses))
end

-- No call of the job is awaited any more.
local function leave_all(job)
  for _, field in ipairs(redis.call('HGET', job, 'reserved_calls') and redis.call('HKEYS', job) or {}) do
    if string.sub(field, 1, 2) == 'v:' then leave_reservation(job, field, redis.call('HGET', job, field)) end
  end
end

-- The claims of a unit that is free have no living owner: whether their calls are paid nobody may ever know.
local function leave_unheard(job, page, position, u)
  for _, c in ipairs(u.claims) do
    if c.ending == '' and c.fence > 0 and c.verdict == 'run' then
      local field = reservation_of(page, position, c.fence)
      local text = redis.call('HGET', job, field)
      if text then leave_reservation(job, field, text) end
    end
  end
end

-- What of a call that needs so much: 'run' (it is reserved, as `field` of the job), 'short' (what is reserved may flow
-- back), 'budget' (it waits for another day), 'capped'.
local function take_room(job, field, cost, tokens, day, purses)
  local found = {}
  for i, value in ipairs(redis.call('HMGET', job, unpack(STANDING))) do found[STANDING[i]] = value end
  if found.capped then return 'capped' end
  local short_cost, short_tokens = string.match(found.short or '0,0', '^(%d+),(%d+)$')
  local needed = {math.max(cost, tonumber(short_cost)), math.max(tokens, tonumber(short_tokens)), 1}
  for i, names in ipairs(COUNTING) do
    local most = found[names[1]]
    if most then
      local used = 0
      for n = 2, #names do used = used + (found[names[n]] or 0) end
      if used + needed[i] > tonumber(most) then
        if tonumber(found.reserved_calls or 0) == 0 then
          redis.call('HSET', job, 'capped', names[1])
          return 'capped'
        end
        redis.call('HSET', job, 'short', string.format('%d,%d', needed[1], needed[2]))
        return 'short'
      end
    end
  end
  local room, purse = room_in_budgets(purses, cost)
  if room == 'capped' then redis.call('HSET', job, 'capped', 'budget ' .. purse) end
  if room ~= 'run' then return room end
  reserve_in(job, purses, cost)
  if found.short then redis.call('HDEL', job, 'short') end
  local names = {}
  for i, of in ipairs(purses) do names[i] = of.name end
  redis.call('HSET', job, 'reserved_cost', string.format('%d', (found.reserved_cost or 0) + cost),
             'reserved_tokens', string.format('%d', (found.reserved_tokens or 0) + tokens),
             'reserved_calls', (found.reserved_calls or 0) + 1,
             field, reservation(cost, tokens, 'o', day, table.concat(names, ' ')))
  return 'run'
end

-- The ends of claims are told: what they had reserved goes back, by way of the counters that are written with them.
-- Adds to `changes` what changes in purses, {purse's name, day, part, by}.
local function return_reservations(job, page, entries, counters, changes)
  local fields = {}
  for i, entry in ipairs(entries) do fields[i] = reservation_of(page, entry[1], entry[2]) end
  for i, text in ipairs(hmget_many(job, fields)) do
    if text then
      local cost, tokens, state, day, purses = read_reservation(text)
      local of, part = 'unheard_', 'unknown'
      if state == 'o' then of, part = 'reserved_', 'reserved' end
      counters[of .. 'cost'] = (counters[of .. 'cost'] or 0) - cost
      counters[of .. 'tokens'] = (counters[of .. 'tokens'] or 0) - tokens
      counters[of .. 'calls'] = (counters[of .. 'calls'] or 0) - 1
      for name in string.gmatch(purses, '%S+') do changes[#changes + 1] = {name, day, part, -cost} end
      redis.call('HDEL', job, fields[i])
    end
  end
end

-- The place of a call, by the names of its counters.
local function place_of(counters)
  for name in pairs(counters) do
    local place = string.match(name, '^b:(%d+%.%d+)%.')
    if place then return place end
  end
end

-- A call's end is told: what it had reserved goes back if it `reserves`, and what it was charged, or may have been,
-- counts in its purses.
local function settle(job, page, entries, counters, reserves, given_ms)
  local changes, charged, purses = {}, {spent = counters.spent, unknown = counters.unknown}, nil
  if reserves then return_reservations(job, page, entries, counters, changes) end
  local place = next(charged) and place_of(counters)
  if place then purses = redis.call('HGET', job, 'purses:' .. place) end
  if purses then
    local day = changes[1] and changes[1][2] or math.floor(wall_clock(given_ms) / DAY_MS)
    for name in string.gmatch(purses, '%S+') do
      for part, amount in pairs(charged) do changes[#changes + 1] = {name, day, part, amount} end
    end
  end
  if #changes > 0 then change_purses(job, changes) end
end
