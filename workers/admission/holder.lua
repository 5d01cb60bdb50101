-- A lease's record in `holders`, JSON: who has the call open, and what it counted for.          Read by: leases.py
-- {pool, job, project, model, node, sent_ms, probe: whether it tries a pool whose circuit breaker is not closed,
--  open_before: calls that the pool had open, estimate: tokens that were asked for, reserved: {requests, input tokens,
--  output tokens}, spent: the model's counters just after the reservation, of the same three, cut_frees: whether the
--  provider ends a call when its connection is closed, cut: true if nobody waits for the call's end any more}
--@include ../store/many.lua

-- A lease that a worker of version 0.1 left behind when it was killed is given back as well; its record is fields
-- joined by '|'.
local function holder_of(record)
  if string.sub(record, 1, 1) == '{' then return cjson.decode(record) end
  local pool, job, project, node = string.match(record, '^([^|]*)|([^|]*)|([^|]*)|([^|]*)')
  return {pool = pool, job = job, project = project, node = node}
end

-- The records of those of the leases that are open, by id.
local function read_holders(holders, ids)
  local held = {}
  if #ids == 0 then return held end
  for i, record in ipairs(hmget_many(holders, ids)) do held[ids[i]] = record or nil end
  return held
end
