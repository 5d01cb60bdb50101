-- Nodes that are dead or silent stay listed for people, most of them for a day: with their facts as they were told
-- last, and why they are gone. One that registers again is no longer among them.
local GONE_MS, GONE_MOST = 86400000, 500

-- `nodes` and `registered` lose the node; what it was told to do is kept.
local function note_gone(nodes, registered, gone, gone_facts, node, why)
  local facts = redis.call('HGET', nodes, node)
  local generation, at = string.match(redis.call('HGET', registered, node) or '', '^(%d+)|(%d+)|')
  redis.call('HDEL', nodes, node)
  redis.call('HDEL', registered, node)
  if not facts then return end
  local time = redis.call('TIME')
  redis.call('ZADD', gone, time[1] * 1000 + math.floor(time[2] / 1000), node)
  redis.call('HSET', gone_facts, node,
             string.format('%s|%s|%s\n%s', generation or '0', at or '0', why, facts))
end

local function forget_gone(gone, gone_facts, orders, now_ms)
  local old = redis.call('ZRANGEBYSCORE', gone, '-inf', now_ms - GONE_MS, 'LIMIT', 0, 100)
  if redis.call('ZCARD', gone) > GONE_MOST then
    for _, node in ipairs(redis.call('ZRANGE', gone, 0, -GONE_MOST - 1)) do old[#old + 1] = node end
  end
  for _, node in ipairs(old) do
    redis.call('ZREM', gone, node)
    redis.call('HDEL', gone_facts, node)
    redis.call('HDEL', orders, node)
  end
end
