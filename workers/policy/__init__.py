"""The pure part of the governor: what a pool's limits are, and what they should become. No I/O, clock or randomness."""
