#!lua flags=allow-oom
-- claim_finish.lua: one living node at a time writes a job's report.
-- KEYS  1 job      ARGV  1 node  2 prefix of the nodes' beacons
-- Reply 1 if this node may: the job is to be finished, and nobody else alive is at it.
local job = unpack(KEYS)
local node, beacons = unpack(ARGV)
local state, finisher = unpack(redis.call('HMGET', job, 'state', 'finisher'))
if state ~= 'finishing' then return 0 end
if finisher and finisher ~= node and redis.call('EXISTS', beacons .. finisher) == 1 then return 0 end
redis.call('HSET', job, 'finisher', node)
return 1
