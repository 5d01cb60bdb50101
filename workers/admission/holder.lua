-- A lease's record in `holders`, JSON: who has the call open, and what it counted for.          Read by: holders.py
-- {pool, job, project, model, node, sent_ms, probe: whether it tries a pool whose circuit breaker is not closed,
--  open_before: calls that the pool had open, estimate: tokens that were asked for, reserved: {requests, input tokens,
--  output tokens}, spent: the model's counters just after the reservation, of the same three}
local function write_holder(holders, id, holder) redis.call('HSET', holders, id, cjson.encode(holder)) end

-- nil: there is no such lease any more.
local function read_holder(holders, id)
  local text = redis.call('HGET', holders, id)
  return text and cjson.decode(text), text
end
