-- A node's registration: generation, Unix ms when it began, and the run id of the server that heard it last. A node
-- that is not listed, since it is new or was given up for silent, gets the next generation of the installation.

-- Returns the node's generation and when it was registered.
local function register(nodes, registered, gone, gone_facts, node, server)
  local generation, at = nil, nil
  if redis.call('HEXISTS', nodes, node) == 1 then
    generation, at = string.match(redis.call('HGET', registered, node) or '', '^(%d+)|(%d+)|')
  end
  if not generation then
    local time = redis.call('TIME')
    generation = redis.call('HINCRBY', registered, '', 1)
    at = string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000))
    redis.call('ZREM', gone, node)
    redis.call('HDEL', gone_facts, node)
  end
  redis.call('HSET', registered, node, string.format('%s|%s|%s', generation, at, server))
  return tonumber(generation), at
end
