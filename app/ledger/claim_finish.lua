#!lua flags=allow-oom
-- claim_finish.lua: one living node at a time writes a job's report.
-- KEYS  1 job      ARGV  1 node  2 prefix of the nodes' beacons
-- Reply 1 if this node may: the job is to be finished, and nobody else alive is at it.
local job = redis.call('HMGET', KEYS[1], 'state', 'finisher')
if job[1] ~= 'finishing' then return 0 end
if job[2] and job[2] ~= ARGV[1] and redis.call('EXISTS', ARGV[2] .. job[2]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'finisher', ARGV[1])
return 1
