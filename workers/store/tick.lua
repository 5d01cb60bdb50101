-- tick.lua: reads the lease clock, so that it goes on while nobody asks for a lease.
-- KEYS  1 clock      ARGV  1 now_ms ("" = the clock)      Reply now_ms
--@include clock.lua
return lease_clock(KEYS[1], ARGV[1])
