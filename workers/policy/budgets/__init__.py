"""Told budgets: what a provider says of its limits, taken as a hypothesis.

`nature` finds out how a budget refills, `budget` follows one, `doubt` tries it, `trust` remembers what came of that,
`hidden` learns a window of which only `Retry-After` tells, and `told` is the collection that the engine asks.
"""
