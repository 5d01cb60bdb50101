-- What claim.lua finds: the page, and of each unit its state, its result and its probes.
--@include ../../workers/store/many.lua
--@include unit.lua

-- nil if there is no such page any more, or no such position in it.
local function find_units(key, item, token, positions)
  local fields = {'left', 'first', 'units', 'opened_ms', 'revoked', item, 'w:' .. token, 'm:' .. token, 'capped',
                  'n:' .. token}
  local head = #fields
  for _, position in ipairs(positions) do
    for _, kind in ipairs({'u:', 'r:', 'p:'}) do fields[#fields + 1] = kind .. position end
  end
  local found = hmget_many(key, fields)
  if not found[1] then return nil end
  local first, size = tonumber(found[2]), tonumber(found[3])
  local page = {opened_ms = found[4], revoked = found[5], item = found[6], waits = found[7] ~= false,
                room = tonumber(found[8] or 0), capped = found[9] ~= false, needs = tonumber(found[10] or 0),
                units = {}}
  for i, position in ipairs(positions) do
    local place = tonumber(position) - first
    if place < 0 or place >= size then return nil end
    local at = head + 3 * i
    page.units[i] = {position = position, state = read_unit(found[at - 2]), has_result = found[at - 1] ~= false,
                     probes = tonumber(found[at] or 0)}
  end
  return page
end

local function is_revoked(page, position)
  return page.revoked and string.find(page.revoked, ',' .. position .. ',', 1, true) ~= nil
end

-- ms until the units' deadline, which is the earlier one of theirs and the job's; -1 if they have none.
local function left_until_deadline(page, unit_ms, ends_ms, now)
  local deadline = math.huge
  if unit_ms and page.opened_ms then deadline = page.opened_ms + unit_ms end
  if ends_ms then deadline = math.min(deadline, tonumber(ends_ms)) end
  return deadline < math.huge and math.max(0, deadline - now) or -1
end
