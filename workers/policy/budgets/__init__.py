"""Reported budgets: what a provider says about its limits, taken as a hypothesis.

`nature` infers how a budget refills, `budget` follows one, `doubt` tests it, `trust` remembers the results, `hidden`
learns a window that only `Retry-After` reveals, and `told` is the collection that the engine uses.
"""
