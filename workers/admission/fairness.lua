-- Fair shares among projects.                                   Model: lab/simulation/enforcer.py, function by function
-- A standing is {open, service, asked_at, waiting}; `standings` are those of the projects present.
local function weight_of(params, project) return params.weights[project] or 1 end

local function shares(params, limit, standings)
  local order, total, given, slots = {}, 0, 0, {}
  for project in pairs(standings) do order[#order + 1], total = project, total + weight_of(params, project) end
  for _, project in ipairs(order) do
    slots[project] = math.floor(limit * weight_of(params, project) / total)
    given = given + slots[project]
  end
  table.sort(order, function(a, b)
    local x, y = standings[a].service, standings[b].service
    if x ~= y then return x < y end
    return a < b
  end)
  for i = 1, math.min(limit - given, #order) do slots[order[i]] = slots[order[i]] + 1 end
  return slots
end

-- Most open calls of a project; nil if nothing is said of it.
local function most_of(params, project, limit)
  local all = params.project_max or {}
  local most = all[project] or all['*']
  if not most then return nil end
  return math.max(1, math.floor(most < 1 and limit * most or most))
end

local function may_take(params, project, standings, limit, rate_bound, quantum)
  local present, waiting = 0, {}
  for name, standing in pairs(standings) do
    present = present + 1
    if standing.waiting and name ~= project then waiting[#waiting + 1] = name end
  end
  local strict = params.fair == 'strict'
  if params.fair == 'off' or present < 2 then return true end
  if #waiting == 0 and not strict then return true end
  local slots, mine = shares(params, limit, standings), standings[project]
  if mine.open >= slots[project] then
    if strict then return false end
    for _, name in ipairs(waiting) do
      if standings[name].open < slots[name] then return false end
    end
  end
  if rate_bound then
    for _, name in ipairs(waiting) do
      if mine.service > standings[name].service + quantum then return false end
    end
  end
  return true
end
