"""How many workers an installation can put to use: the number for autoscalers.

Workers are wanted for calls that wait, as far as the pools' limits and budgets let them be open. If a provider is the
bound, another worker would only wait beside the others. The number follows each reading at once and is not smoothed:
scaling down late is up to the autoscaler (KEDA's `cooldownPeriod`, an HPA's `stabilizationWindowSeconds`), and a second
delay here would hide the actual demand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class WaitingCalls(NamedTuple):
    """A number of calls that are still to be made, or are open, each of which may go to any of these pools."""

    pools: tuple[str, ...]
    calls: int


class WantedBudget(NamedTuple):
    """A budget in calls: how many could begin now, and how many more each second."""

    calls: float
    calls_per_s: float


@dataclass(frozen=True, slots=True)
class WantedRoom:
    """The room that one pool has. `limit` is in force; while the pool is `broken`, one call at a time tries it.
    `latency_s` is how long a call takes, 0 if that is not known."""

    limit: int
    open: int = 0
    broken: bool = False
    latency_s: float = 0.0
    budgets: Sequence[WantedBudget] = ()

    @property
    def calls(self) -> int:
        """The most calls that can be open: the limit, or fewer if a budget lets fewer begin within a call's time
        (Little's law), including what is left of it now."""
        if self.broken:
            return 1
        most = float(self.limit)
        for budget in self.budgets if self.latency_s > 0 else ():
            most = min(most, math.ceil(max(0.0, budget.calls) + budget.calls_per_s * self.latency_s))
        return max(1, int(most)) if self.limit > 0 else 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """The demand for workers: `workers` in all, and by pool the calls that could be open and the workers that it alone
    would occupy. These do not add up to `workers`, since one worker serves several pools. `waiting` are calls, by pool,
    that are not open."""

    workers: int
    calls: Mapping[str, int]
    by_pool: Mapping[str, int]
    waiting: Mapping[str, int]


def wanted_workers(
    work: Sequence[WaitingCalls], rooms: Mapping[str, WantedRoom], *, most: int, width: float, minimum: int = 0,
    unended_jobs: int = 0,
) -> Wanted:  # fmt: skip
    """Return how many workers are of use.

    `most` is the installation's bound on open calls over all pools, `width` how many calls one worker can have open. A
    pool without a room has not been decided on yet, and is bounded by `most` alone. Jobs that have not ended need at
    least one worker, to plan, gather and report, even if none of their calls may be made now. Holds: the result is 0 if
    nothing waits, is open or unfinished, and `minimum` is 0; it is never more than the calls that could be open, except
    for that one worker and `minimum`.
    """
    pools = {*rooms, *(pool for item in work for pool in item.pools)}
    rooms_by_pool = {pool: rooms.get(pool, WantedRoom(most)) for pool in pools}
    needs = _spread(work, {pool: room.calls for pool, room in rooms_by_pool.items()})
    calls = {pool: min(room.calls, max(room.open, needs[pool])) for pool, room in rooms_by_pool.items()}
    in_all = min(most, sum(calls.values()))
    some = int(unended_jobs > 0 or any(room.open for room in rooms_by_pool.values()))
    return Wanted(
        workers=max(minimum, some, _workers(in_all, width)),
        calls=calls,
        by_pool={pool: _workers(min(most, n), width) for pool, n in calls.items()},
        waiting={pool: max(0, needs[pool] - room.open) for pool, room in rooms_by_pool.items()},
    )


def _spread(work: Sequence[WaitingCalls], most: Mapping[str, int]) -> dict[str, int]:
    """Spread the calls over the pools. Calls with a choice go where calls without one leave room, in proportion."""
    needs = dict.fromkeys(most, 0)
    for item in sorted(work, key=lambda item: len(item.pools)):
        choices = list(dict.fromkeys(item.pools))
        free = {pool: max(0, most[pool] - needs[pool]) for pool in choices}
        room = sum(free.values())
        for pool in choices:
            share = free[pool] / room if room else 1 / len(choices)
            needs[pool] += math.ceil(item.calls * share)
    return needs


def _workers(calls: int, width: float) -> int:
    return math.ceil(calls / max(1.0, width))
