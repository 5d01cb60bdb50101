-- Takes leases out of the books and keeps the counts equal to the leases. `holders` tells what each one counted for, so
-- a lease that is gone already (expired, given back twice) changes nothing.
-- `books` are the keys {leases, holders, open}.
--@include ../store/many.lua
--@include holder.lua

-- The fields of `open` that count a call.
local function counts_of(pool, job, project)
  return {'all', 'p:' .. pool, 'j:' .. job, 'o:' .. pool .. '|' .. project}
end

-- Returns the holders of the leases that were really open, by id, how many these are, and their records as they were.
local function release(books, ids)
  local found, freed, records, change, over = {}, 0, {}, {}, {}
  local held = read_holders(books.holders, ids)
  for _, id in ipairs(ids) do
    local record = held[id]
    if record and not found[id] then
      local holder = holder_of(record)
      found[id], freed = holder, freed + 1
      over[freed] = id
      records[#records + 1], records[#records + 2] = id, record
      for _, field in ipairs(counts_of(holder.pool, holder.job, holder.project)) do
        change[field] = (change[field] or 0) - 1
      end
    end
  end
  change_many('HDEL', books.holders, over)
  change_many('ZREM', books.leases, over)
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
