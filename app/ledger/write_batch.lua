#!lua flags=allow-oom
-- write_batch.lua: who holds a batch writes what became of it.
-- KEYS  1 the batch's record  2 batches  3 clock  4 its members  5 batches that are over  6 its job
-- ARGV  1 now_ms  2 its name  3 turn  4 begin (a new one) | hold | add (hold, with more members) | rest | drop | resend
--       (hold, and what may have been sent is sent again under the next identity: its requests may be paid twice)  5 ms
--       for which it is held, or until it is looked after again; most that are kept of those that are over  6 number of
--       the write, greater than those of the turn's earlier ones
--       7... field, value of the record (begin, hold, rest) or of its members (add), or its summary (drop)
-- Reply 1; 0 if another has taken the batch meanwhile, or it is over: nothing is written then. To who drops it again
--       the reply is 1. A write that comes again, or after a later one of its turn, writes nothing, and the reply is 1:
--       whoever sent the later one has its answer, or has given it up.
--@include ../../workers/store/clock.lua
--@include ../../workers/store/many.lua
local record, batches, clock, members, over, job = unpack(KEYS)
local given_ms, name, turn, kind, number, write = unpack(ARGV, 1, 6)
local fields = rest(ARGV, 7)
local present, written = unpack(redis.call('HMGET', record, 'turn', 'written'))
if kind == 'begin' then
  if present then return 1 end
elseif not present then return kind == 'drop' and 1 or 0
elseif present ~= turn then return 0
elseif tonumber(write) <= tonumber(written or 0) then return 1 end
if kind == 'drop' then
  redis.call('DEL', record, members)
  redis.call('ZREM', batches, name)
  if fields[1] ~= '' then
    redis.call('LPUSH', over, fields[1])
    redis.call('LTRIM', over, 0, number - 1)
  end
  return 1
end
local at = lease_clock(clock, given_ms) + number
if kind == 'resend' then
  if redis.call('HGET', record, 'sending_at') ~= '0.0' then
    redis.call('HINCRBY', record, 'number', 1)
    redis.call('HSET', record, 'sending_at', '0.0', 'doubted_at', '0.0')
    if redis.call('HEXISTS', job, 'state') == 1 then
      redis.call('HINCRBY', job, 'possible_double_charges', redis.call('HGET', record, 'requests'))
    end
  end
elseif #fields > 0 then redis.call('HSET', kind == 'add' and members or record, unpack(fields)) end
if kind ~= 'hold' or #fields > 0 then redis.call('HSET', record, 'written', write) end
if kind ~= 'rest' then redis.call('HSET', record, 'held_until', at)
else redis.call('HDEL', record, 'holder', 'held_until') end
redis.call('ZADD', batches, at, name)
return 1
