-- A unit's state in its page, u:<position> = 'fence|owner|attempts|requeues|calls|deaths|since|at|claims': since and at
-- are the ms of its first and its last claim; an owner of '' has given it up, '-' has lost how its work ended. An owner
-- that begins with '@' is a batch, whose record stands where a node's beacon would: it lives as long as that is there.
-- `calls` counts the claims that led to a paid call: it is written before the call, so it is also the intent.
-- claims = 'attempt,fence,verdict,ending;...', newest last: who asked, and what he was answered, so that one who asks
-- again is answered the same. Ending: '' = has not told yet, d = deferred, s = refused as stale.
--
-- A result is r:<position> = '<claim>;<result>', and then there is no u:<position>; the claim that brought it is its
-- fence less the epoch that the page was opened in, or nothing if the result is from before a resumption.
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

-- Whether a unit is in the hands of a living node, or of a batch. A node's claim that outlives the longest call has
-- lost its task.
local function in_living_hands(u, beacons, now, claim_ms)
  local lasts = now - u.at < claim_ms or string.sub(u.owner, 1, 1) == '@'
  return u.owner ~= '' and lasts and redis.call('EXISTS', beacons .. u.owner) == 1
end
