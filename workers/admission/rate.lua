-- A pool's calls per second, averaged over about 5 s: what planning measures its window by. 'calls per second|ms'.
local function note_rate(rates, pool, ended, now_ms)
  local rate, at = string.match(redis.call('HGET', rates, pool) or '', '^(.-)|(.*)$')
  rate, at = tonumber(rate or 0), tonumber(at or now_ms)
  rate = rate * math.exp(-(now_ms - at) / 5000) + ended / 5
  redis.call('HSET', rates, pool, string.format('%.6g|%d', rate, now_ms))
end
