-- A lease's record in `holders`, JSON: who has the call open, and what it counted for.          Read by: holders.py
-- {pool, job, project, model, node, sent_ms, probe: whether it tries a pool whose circuit breaker is not closed,
--  open_before: calls that the pool had open, estimate: tokens that were asked for, reserved: {requests, input tokens,
--  output tokens}, spent: the model's counters just after the reservation, of the same three}
local function write_holder(holders, id, holder) redis.call('HSET', holders, id, cjson.encode(holder)) end

-- A lease that a worker of version 0.1 left behind when it was killed is given back as well; its record is fields
-- joined by '|'.
local function holder_of(record)
  if string.sub(record, 1, 1) == '{' then return cjson.decode(record) end
  local pool, job, project, node = string.match(record, '^([^|]*)|([^|]*)|([^|]*)|([^|]*)')
  return {pool = pool, job = job, project = project, node = node}
end

-- nil: there is no such lease any more.
local function read_holder(holders, id)
  local record = redis.call('HGET', holders, id)
  return record and holder_of(record), record
end
