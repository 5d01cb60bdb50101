-- Who waits for a lease, as 'pool|node', and how it hears that one was freed.
local WAITS_MS = 5000

local function note_waiting(waiting, place, waits, now_ms)
  if waits then redis.call('ZADD', waiting, now_ms, place) else redis.call('ZREM', waiting, place) end
end

-- Tells those who wait, if anybody does: of a pool, or '*' if others may have the slot as well.
local function tell_freed(waiting, channel, pool, now_ms)
  redis.call('ZREMRANGEBYSCORE', waiting, '-inf', now_ms - WAITS_MS)
  if redis.call('ZCARD', waiting) > 0 then redis.call('PUBLISH', channel, pool) end
end
