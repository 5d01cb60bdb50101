#!lua
-- open_page.lua: the next page of a lane exists before its messages do; of two planners one wins.
-- KEYS  1 job  2 page  3 pages  4 watch  5 clock  6 epoch  7 score board
-- ARGV  1 now_ms  2 lane  3 page  4 units  5 next cursor ('' at the lane's end)  6 member of watch  7 watch ms
--       8 low water: units open at which the lane is planned again
--       9 units whose results are among the fields  10 a name of this attempt  11 incarnation
--       12 how many of these results have no score  13 of how many units nobody needs one
--       14 JSON [[place, mark], ...] of these results if the job has a score board, else ''
--       15... further fields: first, i:<item>, r:<position>
-- Reply units now open in the lane, or -1: another planner was first, or the job does not run, its question is
--       answered, or it is another one of this id. The same attempt again, since its answer was lost, is answered as
--       the first time.
--@include ../../workers/store/clock.lua
--@include ../../workers/store/many.lua
--@include board.lua
local job, page, pages, watch, clock, epoch, board = unpack(KEYS)
local given_ms, lane, number, units, next_cursor, watch_member, watch_ms, low, ended, attempt, incarnation, failed,
      spared, marks = unpack(ARGV, 1, 14)
local fields = rest(ARGV, 15)
local now = lease_clock(clock, given_ms)
if redis.call('HGET', page, 'attempt') == attempt then return tonumber(redis.call('HGET', job, 'open:' .. lane)) end
local state, present, next_number, answerer =
  unpack(redis.call('HMGET', job, 'state', 'incarnation', 'page:' .. lane, 'answerer'))
if state ~= 'running' or present ~= incarnation or answerer then return -1 end
if (next_number or '0') ~= number then return -1 end
redis.call('HSET', job, 'page:' .. lane, number + 1, 'cursor:' .. lane, next_cursor, 'low:' .. lane, low)
local left = units - ended
local open = redis.call('HINCRBY', job, 'open:' .. lane, left)
redis.call('HINCRBY', job, 'done', ended)
redis.call('HINCRBY', job, 'scored', ended - failed - spared)
redis.call('HINCRBY', job, 'failed', failed)
if spared ~= '0' then redis.call('HINCRBY', job, 'spared', spared) end
redis.call('HINCRBY', job, 'published', units)
redis.call('HSET', page, 'left', left, 'units', units, 'opened_ms', now, 'attempt', attempt)
local opened_in = redis.call('HGET', epoch, 'number')
if opened_in then redis.call('HSET', page, 'epoch', opened_in) end
change_many('HSET', page, fields)
for _, mark in ipairs(marks ~= '' and cjson.decode(marks) or {}) do write_mark(board, mark[1], mark[2]) end
redis.call('SADD', pages, lane .. '|' .. incarnation .. '.' .. number)
redis.call('ZADD', watch, now + tonumber(watch_ms), watch_member)
return open
