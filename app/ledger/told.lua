-- What claims tell of their units' ends, in record.lua and defer.lua.
--@include ../../workers/store/many.lua
--@include unit.lua
--@include late.lua

-- The page and the units of a write's entries, {position, fence, ...} each; nil if there is no such page any more.
local function read_page(key, entries)
  local fields = {'left', 'epoch', 'unchorded', 'capped'}
  for _, entry in ipairs(entries) do
    fields[#fields + 1] = 'u:' .. entry[1]
    fields[#fields + 1] = 'r:' .. entry[1]
  end
  local found = hmget_many(key, fields)
  if not found[1] then return nil end
  local page = {left = tonumber(found[1]), opened_in = tonumber(found[2] or nil), unchorded = found[3] ~= false,
                capped = found[4] ~= false, units = {}, results = {}}
  for i = 1, #entries do
    page.units[i], page.results[i] = read_unit(found[2 * i + 3]), found[2 * i + 4]
  end
  return page
end

-- The claim of a result: how r:<position> begins.
local function claim_mark(page, fence) return string.format('%d;', fence - (page.opened_in or 0)) end

local function is_of(result, mark) return string.sub(result, 1, #mark) == mark end

-- Whether the unit, which has no result, is this claim's to end. One that an older copy of the store does not have is
-- newer than the unit's, or than the epoch that the page was opened in.
local function is_held(page, u, fence, epoch_key)
  if not u then
    local epoch = page.opened_in and page.opened_in + 1
    return fence >= (epoch or tonumber(redis.call('HGET', epoch_key, 'number') or math.huge))
  end
  local claim = claim_of(u, 'fence', fence)
  if claim and claim.ending ~= '' then return false end
  return fence > u.fence or (fence == u.fence and u.owner ~= '')
end

-- A claim that is not its unit's any more tells how it ended; whether for the first time. Claims from before the page,
-- as of a job of this id that the store forgot, are remembered by themselves.
local function tells(key, page, position, u, fence)
  local claim = claim_of(u, 'fence', fence)
  if claim then
    if claim.ending ~= '' then return false end
    claim.ending = 's'
    write_unit(key, position, u)
    return true
  end
  if u and fence > (page.opened_in or 0) then return false end
  return redis.call('HSETNX', key, string.format('s:%d:%d', position, fence), 1) == 1
end
