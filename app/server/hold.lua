#!lua
-- hold.lua: the job that a submission under an idempotency key makes, the same for all that come with the same request.
-- KEYS  1 record      ARGV  1 digest of the request  2 a job's id  3 ms that the record is kept
-- Reply {'same' | 'other', job}: 'other' if the key came with another request before. The first one's job is
--       everybody's, whichever server asks.
local record = unpack(KEYS)
local request, job, ttl_ms = unpack(ARGV)
if redis.call('HSETNX', record, 'request', request) == 1 then
  redis.call('HSET', record, 'job', job)
  redis.call('PEXPIRE', record, ttl_ms)
end
local held, of = unpack(redis.call('HMGET', record, 'request', 'job'))
return {held == request and 'same' or 'other', of}
