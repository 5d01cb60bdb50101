"""How many workers an installation can put to use, and which waiting messages should go back for idle ones.

Both are pure: the nodes' loads are arguments.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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

    The number is for autoscalers. Workers are wanted for calls that wait, as far as the pools' limits and budgets let
    them be open. If a provider is the bound, another worker would only wait beside the others. The number follows each
    reading at once and is not smoothed: scaling down late is up to the autoscaler (KEDA's `cooldownPeriod`, an HPA's
    `stabilizationWindowSeconds`), and a second delay here would hide the actual demand.
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


OVERLOAD, IDLE, MOST = 5, 2, 3
HOUSEKEEPER = "housekeeping"
"""The name under which housekeeping steals, each second."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one node: the messages that it holds, by pool; its free slots; the pools that it serves; whether it
    takes work; and whether it is full, that is, has no free slot for them. A `depth` from 0 on is used in place of the
    number of messages that it holds."""

    node: str
    held_by_pool: Mapping[str, int]
    available: int
    pools: Collection[str]
    takes: bool = True
    depth: int = field(default=-1)
    full: bool = False

    @property
    def queued(self) -> int:
        return self.depth if self.depth >= 0 else sum(self.held_by_pool.values())

    def spares(self, overload: int) -> int:
        """Return how many messages it can give while it takes work."""
        return self.queued - (0 if self.full else overload)


class Transfer(NamedTuple):
    """A move of `units` of a pool from one node to another."""

    donor: str
    receiver: str
    pool: str
    units: int


def transfers(loads: Iterable[Load], *, overload: int = OVERLOAD, idle: int = IDLE, most: int = MOST) -> list[Transfer]:
    """Return what to move now.

    Holds: no node both gives and receives; no node receives more than it has free slots, or units of a pool that it
    does not serve; and no node gives what it does not hold.

    A node that takes work and holds more than `overload` messages without a lease gives up to `most` of them at a time,
    and keeps at least `overload`. If it is full, its messages wait for one of its calls to end anyway, and it may give
    all of them, up to `most` at a time. A node that takes no work (it is cordoned) gives all. Receivers are nodes that
    take work of the same pool, hold fewer than `idle` messages and have free slots: the emptiest first, one message at
    a time.
    """
    by_name = sorted(loads, key=lambda load: load.node)
    donors = [
        load for load in by_name if (load.spares(overload) > 0 or not load.takes) and any(load.held_by_pool.values())
    ]
    takers = [load for load in by_name if load.takes and not load.full]
    room = {load.node: load.available for load in takers if load.queued < idle and load.available > 0}
    serves = {load.node: load.pools for load in by_name}
    assigned: Counter[str] = Counter()
    moved: Counter[tuple[str, str, str]] = Counter()
    for donor in sorted(donors, key=lambda load: (-load.queued, load.node)):
        remaining = dict(donor.held_by_pool)
        budget = min(most, donor.spares(overload)) if donor.takes else sum(remaining.values())
        for _ in range(budget):
            choices = [
                (assigned[node], -room[node], node, -remaining[pool], pool)
                for pool in remaining
                for node in room
                if remaining[pool] and assigned[node] < room[node] and node != donor.node and pool in serves[node]
            ]
            if not choices:
                break
            _, _, receiver, _, pool = min(choices)
            remaining[pool] -= 1
            assigned[receiver] += 1
            moved[donor.node, receiver, pool] += 1
    return [Transfer(donor, receiver, pool, units) for (donor, receiver, pool), units in moved.items()]
