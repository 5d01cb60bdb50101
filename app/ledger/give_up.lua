#!lua flags=allow-oom
-- give_up.lua: a job asks no more at a place, whatever answers it had there.
-- KEYS  1 the job's asking
-- ARGV  1 place  2 the stop, JSON  3 retention s
-- Reply 1 if this stop is the one in force, however often it is told; 0 if the job had stopped there before.
local field = 'stopped:' .. ARGV[1]
redis.call('HSETNX', KEYS[1], field, ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return redis.call('HGET', KEYS[1], field) == ARGV[2] and 1 or 0
