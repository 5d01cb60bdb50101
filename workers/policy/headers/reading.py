"""What one answer says about limits, independent of the dialect."""

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
    """One budget as the provider reported it when the call arrived.

    budget     its name among the others of one dialect
    limit      0 if it is not reported
    period_s   over which it counts, if a name or a policy says so; 0 if it is not reported
    reset_s    seconds to the reported reset; None if there is none. Counted from the send of the call, or from its
               answer if the provider reported an instant (`from_answer`)
    grain_s    the resolution of the reset, in seconds
    bare       the reset was a number without a unit: seconds, or milliseconds
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
    """All that one answer says about limits. `retry_after_s` counts from the answer, in steps of `retry_grain_s`.
    `unknown` are names of headers that seem to be about limits and could not be read."""

    budgets: tuple[Reading, ...] = ()
    retry_after_s: float | None = None
    retry_grain_s: float = 0.0
    unknown: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != NO_READINGS

    @classmethod
    def from_list(cls, raw: Sequence[Any]) -> Readings:
        """Read the form stored as JSON; what an older version wrote in another form gives no readings."""
        if len(raw) != len(cls._fields) or not isinstance(raw[0], list):
            return NO_READINGS
        budgets, retry_after_s, retry_grain_s, unknown = raw
        if any(len(budget) != len(Reading._fields) for budget in budgets):
            return NO_READINGS
        return cls(
            tuple(Reading(name, BudgetUnit(unit), *rest) for name, unit, *rest in budgets),
            retry_after_s,
            retry_grain_s,
            tuple(unknown),
        )


NO_READINGS = Readings()
