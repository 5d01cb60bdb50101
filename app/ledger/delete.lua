#!lua flags=allow-oom
-- delete.lua: an ended job's record goes, and all that is kept beside it; its id is free.
-- KEYS  1 job  2 items  3 pages  4 score board  5 continuations  6 trouble  7 asking  8 jobs  9 unfinished  10 bounded
--       11 outbox  12 kept pages
-- ARGV  1 job id  2 incarnation that is meant, or '' for whichever there is
-- Reply its state before, '' if there is none. Nothing changes unless that has ended, and is announced: who waits for
--       its result is told first (then the reply is 'unannounced').
local job, items, pages, board, continuations, trouble, asking, jobs, unfinished, bounded, outbox, kept =
  unpack(KEYS)
local job_id, meant = unpack(ARGV)
local state, incarnation = unpack(redis.call('HMGET', job, 'state', 'incarnation'))
if not state or (meant ~= '' and incarnation ~= meant) then return '' end
if state ~= 'completed' and state ~= 'cancelled' and state ~= 'lost' then return state end
if redis.call('SISMEMBER', outbox, job_id) == 1 then return 'unannounced' end
redis.call('DEL', job, items, pages, board, continuations, trouble, asking, kept)
redis.call('ZREM', jobs, job_id)
redis.call('ZREM', unfinished, job_id)
redis.call('ZREM', bounded, job_id)
return state
