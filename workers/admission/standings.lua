-- The projects' standings in a pool: who has calls open or wants some, and what each was given so far. `state` is what
-- the pool remembers between calls.                                   Model: lab/simulation/enforcer.py, same names
--@include ../store/many.lua

-- The project's standing, made if need be; `open_of` tells how many calls a project has open.
local function standing_of(params, state, project, open_of, now)
  local ttl = params.demand_ttl_s
  local standing = state.projects[project]
  if not standing then
    for name, other in pairs(state.projects) do
      if other.open == 0 and now > other.asked_at + ttl then state.projects[name] = nil end
    end
    standing = {open = open_of(project), service = 0, asked_at = 0, waiting = false}
    state.projects[project] = standing
  end
  if standing.open == 0 and now > standing.asked_at + ttl then
    local least
    for name, other in pairs(state.projects) do
      if name ~= project and (not least or other.service < least) then least = other.service end
    end
    standing.service = math.max(standing.service, least or 0)
  end
  standing.asked_at = now
  return standing
end

-- Takes over how many calls each project really has open.
local function count_open(state, open, pool)
  local names, fields = {}, {}
  for project in pairs(state.projects) do
    names[#names + 1], fields[#fields + 1] = project, 'o:' .. pool .. '|' .. project
  end
  if #names == 0 then return end
  for i, calls in ipairs(hmget_many(open, fields)) do state.projects[names[i]].open = tonumber(calls or 0) end
end

local function present_of(params, state, now)
  local present = {}
  for name, standing in pairs(state.projects) do
    local silent = now > standing.asked_at + params.demand_ttl_s
    if standing.open > 0 or not silent then
      if silent then standing.waiting = false end
      present[name] = standing
    end
  end
  return present
end

-- How many projects have calls open or want some.
local function projects_present(params, state, now)
  local present = 0
  for _, standing in pairs(state.projects) do
    if standing.open > 0 or (params and now <= standing.asked_at + params.demand_ttl_s) then present = present + 1 end
  end
  return present
end
