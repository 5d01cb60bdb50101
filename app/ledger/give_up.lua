#!lua flags=allow-oom
-- give_up.lua: a job asks no more at a place, whatever answers it had there.
-- KEYS  1 the job's asking
-- ARGV  1 place  2 the stop, JSON  3 retention s
-- Reply 1 if this stop is the one in force, however often it is told; 0 if the job had stopped there before.
local asking = unpack(KEYS)
local place, stop, keep_s = unpack(ARGV)
local field = 'stopped:' .. place
redis.call('HSETNX', asking, field, stop)
redis.call('EXPIRE', asking, keep_s)
return redis.call('HGET', asking, field) == stop and 1 or 0
