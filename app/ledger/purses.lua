-- Purses: what the calls of a project, or of a pool, have cost in one currency, and may cost yet. A hash, in picos:
-- d:<day since 1970>, m:<12 * year + month - 1> and t (ever), all of UTC, = '<spent>,<unknown>'; unknown is the most
-- that calls may have cost which told no tokens, or whose workers were lost, and counts as spent.
-- r = what is reserved for open calls of those who must keep a budget; it counts in any day.
-- short = '<day>,<most that was asked for then and did not fit>': nobody gets less room than that on that day, so that
-- jobs with short texts are not preferred.
-- A call counts in the day and the month in which it was claimed, whenever it ends.
-- All purses are named by their job, <what>:<name>:<currency>, and stand under its key's hash tag.
-- Holds: what of a budget is spent, reserved and unknown together is never more than the budget.
local DAY_MS, DAYS_KEPT, EVER = 86400000, 400, 3
local EXACT = 2 ^ 53  -- larger sums are rounded, by less than this margin however they are added
local MARGIN = 10 ^ 9

local function purse_key(job, name) return string.match(job, '^{[^}]*}') .. ':purse:' .. name end

-- The month of a day, by the Gregorian calendar: https://howardhinnant.github.io/date_algorithms.html, civil_from_days.
local function month_of(day)
  local z, div = day + 719468, function(a, b) return math.floor(a / b) end
  local era = div(z, 146097)
  local of_era = z - era * 146097
  local year = div(of_era - div(of_era, 1460) + div(of_era, 36524) - div(of_era, 146096), 365)
  local of_year = of_era - (365 * year + div(year, 4) - div(year, 100))
  local from_march = div(5 * of_year + 2, 153)
  return 12 * (year + era * 400) + from_march + 2
end

local function periods_of(day) return {'d:' .. day, 'm:' .. month_of(day), 't'} end

local function add_purse(job, name) redis.call('SADD', string.match(job, '^{[^}]*}') .. ':purses', name) end

-- The budgets that a call must keep, of ' <purse>=<most of a day>,<of a month>,<ever> ...', each '-' if there is none.
local function read_budgets(job, text, day)
  local purses, periods = {}, periods_of(day)
  for name, of_day, of_month, ever in string.gmatch(text, ' (%S+)=([%d-]+),([%d-]+),([%d-]+)') do
    local key = purse_key(job, name)
    local reserved, short, spent_today, spent_in_month, spent =
      unpack(redis.call('HMGET', key, 'r', 'short', unpack(periods)))
    local of, most = string.match(short or '', '^(%d+),(%d+)$')
    purses[#purses + 1] = {
      name = name, key = key, day = day, is_new = not reserved, reserved = math.max(0, tonumber(reserved or 0)),
      short = tonumber(of) == day and tonumber(most) or 0, paid = {spent_today, spent_in_month, spent},
      most = {tonumber(of_day) or false, tonumber(of_month) or false, tonumber(ever) or false},
    }
  end
  return purses
end

-- Whether a call fits into all budgets: 'run'; 'short', what is reserved may flow back; 'budget', not before the next
-- day; 'capped' and the purse's name, never.
local function room_in_budgets(purses, cost)
  for _, purse in ipairs(purses) do
    local needed = math.max(cost, purse.short)
    for i, most in ipairs(purse.most) do
      if most then
        local spent, unknown = string.match(purse.paid[i] or '0,0', '^(%d+),(%d+)$')
        if most > EXACT then most = most - MARGIN end
        if spent + unknown + purse.reserved + needed > most then
          redis.call('HSET', purse.key, 'short', string.format('%d,%d', purse.day, needed))
          if purse.reserved > 0 then return 'short' end
          return i == EVER and 'capped' or 'budget', purse.name
        end
      end
    end
  end
  return 'run'
end

local function reserve_in(job, purses, cost)
  local amount = string.format('%d', cost)
  for _, purse in ipairs(purses) do
    redis.call('HINCRBY', purse.key, 'r', amount)
    if purse.short > 0 then redis.call('HDEL', purse.key, 'short') end
    if purse.is_new then add_purse(job, purse.name) end
  end
end

-- What a purse's calls of a day have cost changes in that day, its month and ever.
local function pay_from(job, name, day, spent, unknown)
  local key, periods, fields = purse_key(job, name), periods_of(day), {}
  local texts = redis.call('HMGET', key, unpack(periods))
  for i, text in ipairs(texts) do
    local spent_before, unknown_before = string.match(text or '0,0', '^(%d+),(%d+)$')
    fields[2 * i - 1] = periods[i]
    fields[2 * i] = string.format('%d,%d', spent_before + spent, math.max(0, unknown_before + unknown))
  end
  redis.call('HSET', key, unpack(fields))
  if not texts[EVER] then add_purse(job, name) end
  if not texts[1] then redis.call('HDEL', key, 'd:' .. (day - DAYS_KEPT)) end
end

-- Changes purses by {purse's name, day of the call, part, by} each. Each purse is written once for a day.
local function change_purses(job, changes)
  local sums, found = {}, {}
  for _, change in ipairs(changes) do
    local name, day, part, by = unpack(change)
    if part == 'reserved' then
      redis.call('HINCRBY', purse_key(job, name), 'r', string.format('%d', by))
    else
      local at = name .. ' ' .. day
      if not found[at] then
        found[at] = {name = name, day = day, spent = 0, unknown = 0}
        sums[#sums + 1] = found[at]
      end
      found[at][part] = found[at][part] + by
    end
  end
  for _, sum in ipairs(sums) do pay_from(job, sum.name, sum.day, sum.spent, sum.unknown) end
end
