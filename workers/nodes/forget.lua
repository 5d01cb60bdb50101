#!lua flags=allow-oom
-- forget.lua: a silent node whose work is taken over is listed among those that are gone; its leases run until their
-- deadlines, and what it was told to do stands for when it is back.
-- KEYS  1 nodes  2 registered  3 gone  4 their facts      ARGV  1 node  2 why it is gone
-- Reply 1
--@include gone.lua
local nodes, registered, gone, gone_facts = unpack(KEYS)
local node, why = unpack(ARGV)
note_gone(nodes, registered, gone, gone_facts, node, why)
return 1
