-- A unit's state in its page, u:<position> = 'fence|owner|attempts|requeues|calls|deaths|since|at|claims': since and at
-- are the ms of its first and its last claim; an owner of '' has given it up, '-' has lost how its work ended.
-- `calls` counts the claims that led to a paid call: it is written before the call, so it is also the intent.
-- claims = 'attempt,fence,verdict,ending;...', newest last: who asked, and what he was answered, so that one who asks
-- again is answered the same. Ending: '' = has not told yet, d = deferred, s = refused as stale.
--
-- A result is r:<position> = '<claim>;<result>', and then there is no u:<position>; the claim that brought it is its fence
-- less the epoch that the page was opened in, or nothing if the result is from before a resumption. Claims that had not
-- told their end by then are late: field `late` = ',<position>:<fence>,...' of the page, and of the job when the page is
-- gone. What they bring yet was a paid call, and is counted once; what any other claim brings is a repeat.
-- Holds: read_unit reads whatever write_unit writes, and what it cannot read it takes for a unit whose end is lost.
local NOBODY, CLAIMS_KEPT = '-', 6

local function read_claims(text)
  local claims = {}
  for attempt, fence, verdict, ending in string.gmatch(text, '([^,;]*),(%-?%d+),(%a+),(%a?)') do
    claims[#claims + 1] = {attempt = attempt, fence = tonumber(fence), verdict = verdict, ending = ending}
  end
  return claims
end

-- A unit that nobody has claimed before.
local function new_unit(now)
  return {fence = 0, owner = '', attempts = 0, requeues = 0, calls = 0, deaths = 0, since = now, at = now, claims = {}}
end

-- The unit of a field's value; nil if the value is none.
local function read_unit(text)
  if not text then return nil end
  local fence, owner, attempts, requeues, calls, deaths, since, at, claims =
    string.match(text, '^(%-?%d+)|([^|]*)|(%-?%d+)|(%-?%d+)|(%-?%d+)|(%-?%d+)|(%-?%d+)|(%-?%d+)|?(.*)$')
  if not fence then
    local u = new_unit(0)
    u.fence, u.owner = tonumber(string.match(text, '^%d+') or 0), NOBODY
    return u
  end
  return {fence = tonumber(fence), owner = owner, attempts = tonumber(attempts), requeues = tonumber(requeues),
          calls = math.max(0, tonumber(calls)), deaths = tonumber(deaths), since = tonumber(since), at = tonumber(at),
          claims = read_claims(claims)}
end

local function write_unit(page, position, u)
  local settled, claims = 0, {}
  for i = #u.claims, 1, -1 do
    local c = u.claims[i]
    local open = c.ending == '' and c.fence > 0
    if not open then settled = settled + 1 end
    if open or settled <= CLAIMS_KEPT then
      table.insert(claims, 1, string.format('%s,%d,%s,%s', c.attempt, c.fence, c.verdict, c.ending))
    end
  end
  redis.call('HSET', page, 'u:' .. position, string.format('%d|%s|%d|%d|%d|%d|%d|%d|%s',
    u.fence, u.owner, u.attempts, u.requeues, u.calls, u.deaths, u.since, u.at, table.concat(claims, ';')))
end

-- A unit's claim by the name of the attempt or by its fence; nil if it is not among those that are kept.
local function claim_of(u, field, value)
  for _, c in ipairs(u and u.claims or {}) do
    if c[field] == value then return c end
  end
end

-- Notes the claims of a unit that have not told their end, now that another one's result is there.
local function note_late(page, position, u, fence)
  for _, c in ipairs(u and u.claims or {}) do
    if c.ending == '' and c.fence > 0 and c.fence ~= fence then
      local list = redis.call('HGET', page, 'late') or ','
      redis.call('HSET', page, 'late', list .. string.format('%d:%d,', position, c.fence))
    end
  end
end

-- Whether a claim is noted as late in a hash's field; it is not any more.
local function was_late(key, field, position, fence)
  local list, name = redis.call('HGET', key, field), string.format(',%d:%d,', position, fence)
  local from, to = string.find(list or '', name, 1, true)
  if not from then return false end
  list = string.sub(list, 1, from) .. string.sub(list, to + 1)
  if list == ',' then redis.call('HDEL', key, field) else redis.call('HSET', key, field, list) end
  return true
end

-- Adds {field: number} to a job's counters, if there is the job; returns what they are then, and further fields.
local function count(job, counters, further)
  local names, found, changes = {'state'}, {}, {}
  for name, by in pairs(counters) do
    if by ~= 0 then names[#names + 1] = name end
  end
  for _, name in ipairs(further or {}) do names[#names + 1] = name end
  local values = redis.call('HMGET', job, unpack(names))
  for i, name in ipairs(names) do
    local by = counters[name] or 0
    if by ~= 0 and values[1] then
      found[name] = tonumber(values[i] or 0) + by
      changes[#changes + 1], changes[#changes + 2] = name, string.format('%d', found[name])
    else found[name] = values[i] end
  end
  if #changes > 0 then redis.call('HSET', job, unpack(changes)) end
  return found
end

-- Whether a unit is in the hands of a living node. A claim that outlives the longest call has lost its task.
local function in_living_hands(u, beacons, now, claim_ms)
  return u.owner ~= '' and now - u.at < claim_ms and redis.call('EXISTS', beacons .. u.owner) == 1
end
