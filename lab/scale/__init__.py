"""How far one installation goes: what a store bears, what a second one brings, what so many calls a second need."""
