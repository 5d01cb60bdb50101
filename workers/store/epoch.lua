-- The store's epoch: a number that grows whenever the store turns out to have forgotten what it had told somebody,
-- after a flush or a fail-over to an older copy. While `closed_until` is ahead nothing is granted: calls may be open
-- that the store knows nothing of. What callers know: workers/store/scripts.py. A hash of the server's run id,
-- `number`, `after` (the newest epoch that is known to have been before), `closed_until` (lease-clock ms) and, for each
-- node, `told:<node>`: how many answers with grants it was given since.
--
-- Rules, first match wins: the caller knows what the store does not -> a new epoch, closed for as long as a call may
-- last; no epoch yet -> one begins; another server answers -> both closed for as long as living nodes need to speak.
-- Holds: of two epochs the later one's number is greater by a million at least, so that epoch + claims never go back.
local HEARING_MS, EPOCHS_APART = 2000, 1000000

-- Returns number, lease-clock ms until which nothing is granted, the server's run id.
local function store_epoch(key, given_ms, now, node, known, told, grace_ms)
  local found = redis.call('HMGET', key, 'number', 'closed_until', 'told:' .. node, 'server', 'after')
  local number, closed_until = tonumber(found[1] or 0), tonumber(found[2] or 0)
  local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
  local forgot = known > number or (known == number and told > tonumber(found[3] or 0)) or
    (known < number and known > tonumber(found[5] or 0))
  if not forgot and number > 0 and server == found[4] then return number, closed_until, server end
  local begins = forgot or number == 0
  if begins then
    local after = math.max(known, number)
    number = math.max(wall_clock(given_ms), after + EPOCHS_APART)
    redis.call('DEL', key)
    redis.call('HSET', key, 'after', string.format('%d', after))
  end
  if begins or found[4] then
    closed_until = math.max(closed_until, now + (forgot and grace_ms or HEARING_MS))
  end
  redis.call('HSET', key, 'number', string.format('%d', number), 'closed_until', string.format('%d', closed_until),
             'server', server)
  return number, closed_until, server
end

-- How many answers with grants a node was given in this epoch; one more if this one `grants`.
local function note_told(key, node, grants)
  if grants then return redis.call('HINCRBY', key, 'told:' .. node, 1) end
  return tonumber(redis.call('HGET', key, 'told:' .. node) or 0)
end
