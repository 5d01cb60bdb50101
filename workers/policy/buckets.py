"""Budgets in their simplest form: what a call takes from one, and budgets that an operator has set."""

from __future__ import annotations

from dicast.workers.policy.events import Cost
from dicast.workers.policy.headers import BudgetUnit
from dicast.workers.policy.parameters import Bucket


def amount(unit: BudgetUnit, cost: Cost) -> float:
    """Return what `cost` takes from a budget that counts `unit`."""
    if unit is BudgetUnit.REQUESTS:
        return cost.requests
    if unit is BudgetUnit.INPUT_TOKENS:
        return cost.input_tokens
    if unit is BudgetUnit.OUTPUT_TOKENS:
        return cost.output_tokens
    return cost.input_tokens + cost.output_tokens


def configured_bucket(unit: BudgetUnit, per_min: float) -> Bucket:
    """Return a bucket for an operator's own budget, which holds in every window of a minute.

    In any minute at most `capacity + 60 * refill` is granted, so the depth is taken off the refill: requests have
    a depth of a tenth of a second (one call when that is less), tokens of three seconds. A call larger than the
    depth of a token bucket is granted when the bucket is full, and is paid back by waiting.
    """
    seconds = 0.1 if unit is BudgetUnit.REQUESTS else 3.0
    free = 1.0 if unit is BudgetUnit.REQUESTS else 0.0
    depth = max(1.0, per_min * seconds / 60.0)
    return Bucket(f"configured_{unit}", unit, "", depth, max(1e-3, (per_min - (depth - free)) / 60.0))
