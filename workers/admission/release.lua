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

-- Calls that were cut, and that the provider may still be working on: their leases leave their holders' hands, and
-- count on until their deadlines, or `further_ms` (by id) from now on where that is later. Returns the holders of those
-- that were open and not cut before, by id.
local function keep_cut(books, ids, further_ms, now_ms)
  local found, expiries, records = {}, {}, {}
  local held = read_holders(books.holders, ids)
  for _, id in ipairs(ids) do
    local holder = held[id] and holder_of(held[id])
    if holder and not holder.cut and not found[id] then
      holder.cut = true
      found[id] = holder
      local ends_ms = tonumber(redis.call('ZSCORE', books.leases, id) or now_ms)
      expiries[#expiries + 1], expiries[#expiries + 2] = math.max(ends_ms, now_ms + further_ms[id]), id
      records[#records + 1], records[#records + 2] = id, cjson.encode(holder)
    end
  end
  change_many('ZADD', books.leases, expiries)
  change_many('HSET', books.holders, records)
  return found
end

-- Ends leases whose deadline is over; returns how many, and {id, holder's record, ...} of them.
local function release_expired(books, now_ms)
  local ids = redis.call('ZRANGEBYSCORE', books.leases, '-inf', now_ms, 'LIMIT', 0, 1000)
  local _, freed, records = release(books, ids)
  return freed, records
end
