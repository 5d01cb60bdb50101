-- admit.lua: give leases back, then grant or refuse new ones for one pool, in one step.
-- KEYS  1 clock  2 leases  3 holders  4 open  5 pool_limits  6 job_limits  7 rates  8 waiting  9 short  (see keys.py)
-- ARGV  1 now_ms ("" = lease clock)  2 pool  3 node  4 ttl_ms  5 freed channel
--       6 JSON [lease id, ...] to give back  7 JSON [[lease id, job, project], ...] wanted, oldest first
-- Reply {open in pool, open in all, retry_after_ms (-1: when a lease is freed), reason, verdict, verdict, ...}
--       verdict 1 granted, 0 refused, 2 the job makes no calls any more: let it pass without a lease
-- While the slots of all pools together are short, a pool with its share of them or more leaves the next to one with
-- less: whoever gives a lease back asks in the same step, and would otherwise keep what it has for ever.
-- Holds: granted implies open <= the pool's limit, <= the job's frozen limit, and in all <= the largest frozen limit.
--@include clock.lua
--@include release.lua
local now, pool, node = lease_clock(KEYS[1], ARGV[1]), ARGV[2], ARGV[3]
local given, wanted = cjson.decode(ARGV[6]), cjson.decode(ARGV[7])

local expired = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 1000)
local cap = 0
for _, limit in ipairs(redis.call('HVALS', KEYS[6])) do cap = math.max(cap, tonumber(limit)) end
local was_full = tonumber(redis.call('HGET', KEYS[4], 'all') or 0) >= cap
local freed = release(KEYS[2], KEYS[3], KEYS[4], expired)
local given_back = release(KEYS[2], KEYS[3], KEYS[4], given)
freed = freed + given_back

if given_back > 0 then
  -- Calls per second, averaged over about 5 s: what planning measures its window by.
  local rate, at = string.match(redis.call('HGET', KEYS[7], pool) or '', '^(.-)|(.*)$')
  rate, at = tonumber(rate or 0), tonumber(at or now)
  rate = rate * math.exp(-(now - at) / 5000) + given_back / 5
  redis.call('HSET', KEYS[7], pool, string.format('%.6g|%d', rate, now))
end

local open = redis.call('HMGET', KEYS[4], 'all', 'p:' .. pool)
local open_all, open_pool = tonumber(open[1] or 0), tonumber(open[2] or 0)
local pool_limit = tonumber(redis.call('HGET', KEYS[5], pool) or 'inf')
local reply = {0, 0, -1, ''}

redis.call('ZREM', KEYS[9], pool)
local rivals = redis.call('ZRANGEBYSCORE', KEYS[9], now - 1500, '+inf')
local share, behind = math.floor(cap / (1 + #rivals)), 0
for _, rival in ipairs(rivals) do
  if tonumber(redis.call('HGET', KEYS[4], 'p:' .. rival) or 0) < share then behind = behind + 1 end
end
local job_open, job_limit, taken = {}, {}, 0

for _, want in ipairs(wanted) do
  local id, job, project = want[1], want[2], want[3]
  if not job_open[job] then
    job_open[job] = tonumber(redis.call('HGET', KEYS[4], 'j:' .. job) or 0)
    job_limit[job] = tonumber(redis.call('HGET', KEYS[6], job) or -1)
  end
  local verdict = 0
  if job_limit[job] < 0 then verdict = 2
  elseif open_all >= cap or (behind > 0 and open_pool >= share and open_all >= cap - behind) then
    reply[4] = 'limit'
    redis.call('ZADD', KEYS[9], now, pool)
  elseif open_pool >= pool_limit then reply[4] = 'pool_limit'
  elseif job_open[job] >= job_limit[job] then reply[4] = 'job_limit'
  else
    verdict, taken = 1, taken + 1
    open_all, open_pool, job_open[job] = open_all + 1, open_pool + 1, job_open[job] + 1
    redis.call('ZADD', KEYS[2], now + tonumber(ARGV[4]), id)
    redis.call('HSET', KEYS[3], id, pool .. '|' .. job .. '|' .. project .. '|' .. node)
    redis.call('HINCRBY', KEYS[4], 'j:' .. job, 1)
  end
  reply[#reply + 1] = verdict
end
if taken > 0 then
  redis.call('HINCRBY', KEYS[4], 'all', taken)
  redis.call('HINCRBY', KEYS[4], 'p:' .. pool, taken)
end

local place = pool .. '|' .. node
if reply[4] ~= '' then redis.call('ZADD', KEYS[8], now, place) else redis.call('ZREM', KEYS[8], place) end
if freed > taken then
  redis.call('ZREMRANGEBYSCORE', KEYS[8], '-inf', now - 5000)
  if redis.call('ZCARD', KEYS[8]) > 0 then
    redis.call('PUBLISH', ARGV[5], (was_full or #expired > 0) and '*' or pool)
  end
end
reply[1], reply[2] = open_pool, open_all
return reply
