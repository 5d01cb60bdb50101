"""The whole pipeline in virtual time: its own Python over the real Lua scripts on a real server.

Every node runs the product's Judge, Planner, Gatherer, Housekeeper, Ledger and Gate on an event loop of its own whose
clock is the world's. A seeded scheduler decides which loop turns next, when an answer of the store arrives, and who is
killed, frozen, cut off or told a lie. Broker and provider are the world's, and the provider keeps the books.
"""
