"""Which messages that wait at busy nodes should go back for idle ones. Pure: the nodes' loads are arguments.

A node that takes work and holds more than `overload` messages without a lease gives up to `most` of them at a time, and
keeps at least `overload`. If it is full, its messages wait for one of its calls to end anyway, and it may give all of
them, up to `most` at a time. A node that takes no work (it is cordoned) gives all. Receivers are nodes that take work
of the same pool, hold fewer than `idle` messages and have free slots: the emptiest first, one message at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

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
    """
    by_name = sorted(loads, key=lambda load: load.node)
    donors = [
        load for load in by_name if (load.spares(overload) > 0 or not load.takes) and any(load.held_by_pool.values())
    ]
    takers = [load for load in by_name if load.takes and not load.full]
    room = {load.node: load.available for load in takers if load.queued < idle and load.available > 0}
    serves = {load.node: load.pools for load in by_name}
    got: Counter[str] = Counter()
    moved: Counter[tuple[str, str, str]] = Counter()
    for donor in sorted(donors, key=lambda load: (-load.queued, load.node)):
        remaining = dict(donor.held_by_pool)
        budget = min(most, donor.spares(overload)) if donor.takes else sum(remaining.values())
        for _ in range(budget):
            choices = [
                (got[node], -room[node], node, -remaining[pool], pool)
                for pool in remaining
                for node in room
                if remaining[pool] and got[node] < room[node] and node != donor.node and pool in serves[node]
            ]
            if not choices:
                break
            _, _, receiver, _, pool = min(choices)
            remaining[pool] -= 1
            got[receiver] += 1
            moved[donor.node, receiver, pool] += 1
    return [Transfer(donor, receiver, pool, units) for (donor, receiver, pool), units in moved.items()]
