-- Takes leases out of the books and keeps the counts equal to the leases. `holders` tells what each one counted for, so
-- a lease that is gone already (expired, given back twice) changes nothing.
-- `books` are the keys {leases, holders, open}.
--@include holder.lua

-- The fields of `open` that count a call.
local function counts_of(pool, job, project)
  return {'all', 'p:' .. pool, 'j:' .. job, 'o:' .. pool .. '|' .. project}
end

-- Returns the holders of the leases that were really open, by id, how many these are, and their records as they were.
local function release(books, ids)
  local found, freed, records, change = {}, 0, {}, {}
  for _, id in ipairs(ids) do
    local holder, record = read_holder(books.holders, id)
    if holder then
      redis.call('HDEL', books.holders, id)
      redis.call('ZREM', books.leases, id)
      found[id], freed = holder, freed + 1
      records[#records + 1], records[#records + 2] = id, record
      for _, field in ipairs(counts_of(holder.pool, holder.job, holder.project)) do
        change[field] = (change[field] or 0) - 1
      end
    end
  end
  for field, by in pairs(change) do
    if redis.call('HINCRBY', books.open, field, by) <= 0 then redis.call('HDEL', books.open, field) end
  end
  return found, freed, records
end

-- Ends leases whose deadline is over; returns how many, and {id, holder's record, ...} of them.
local function release_expired(books, now_ms)
  local ids = redis.call('ZRANGEBYSCORE', books.leases, '-inf', now_ms, 'LIMIT', 0, 1000)
  local _, freed, records = release(books, ids)
  return freed, records
end
