"""What one answer tells of limits, whatever dialect it was told in."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple


class BudgetUnit(StrEnum):
    """What a budget counts."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"


class Reading(NamedTuple):
    """One budget as the provider showed it when the call arrived.

    budget     names it among the others of one dialect
    limit      0: not told
    period_s   over which it counts, where a name or a policy says so; 0: not told
    reset_s    seconds to the told reset; None: not told. Counted from the send of the call, or from its answer where
               the provider told an instant (`from_answer`)
    grain_s    the reset is told in steps of so many seconds
    bare       a number without a unit: seconds, or milliseconds
    """

    budget: str
    unit: BudgetUnit
    limit: float
    remaining: float
    period_s: float = 0.0
    reset_s: float | None = None
    grain_s: float = 0.0
    from_answer: bool = False
    bare: bool = False


class Readings(NamedTuple):
    """All that one answer tells. `retry_after_s` counts from the answer, in steps of `retry_grain_s`; `unknown` are
    names of headers that seem to be about limits and could not be read."""

    budgets: tuple[Reading, ...] = ()
    retry_after_s: float | None = None
    retry_grain_s: float = 0.0
    unknown: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != NO_READINGS

    @classmethod
    def from_list(cls, found: Sequence[Any]) -> Readings:
        """Back from JSON; what an older version wrote in another form is nothing told."""
        if len(found) != len(cls._fields) or not isinstance(found[0], list):
            return NO_READINGS
        budgets, retry_after_s, retry_grain_s, unknown = found
        if any(len(budget) != len(Reading._fields) for budget in budgets):
            return NO_READINGS
        return cls(
            tuple(Reading(name, BudgetUnit(unit), *rest) for name, unit, *rest in budgets),
            retry_after_s,
            retry_grain_s,
            tuple(unknown),
        )


NO_READINGS = Readings()
