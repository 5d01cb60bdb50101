"""How a job is laid out: lanes, positions in a lane, and how much of it is published ahead.

A lane holds the units of all agents of one pool, so that a slow pool never holds back another's pages. Agents with the
same several deployments have a lane of their own; the pool of each unit is decided when it is sent. A panel whose later
judges are called only if needed has lanes for each of its stages.

In a lane the units stand in the order item, replicate, agent, dimension; a unit's index there is its position. A page
is a run of positions. Everything is arithmetic on positions, so a job of a million units needs no list of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Unit(NamedTuple):
    """The unit at one position; all fields are indices, and `item` counts from the start of the job's items."""

    item: int
    replicate: int
    agent: int
    dimension: int


@dataclass(frozen=True, slots=True)
class Lane:
    """The units of a job that have the same choice of pools, usually one. `agents` are indices into the job's agents,
    `pools` the pools of their deployments in order; `replicates` counts the job's rounds."""

    pools: tuple[str, ...]
    agents: tuple[int, ...]
    dimensions: int
    replicates: int
    batched: bool
    stage: int = 0
    """The lane's units are planned when those of all earlier stages have ended for their item."""

    @property
    def units_per_item(self) -> int:
        return self.replicates * len(self.agents) * self.dimensions

    @property
    def stride(self) -> int:
        """The units that one message covers: all dimensions of one agent and item when batched."""
        return self.dimensions if self.batched else 1

    def unit(self, position: int) -> Unit:
        rest, dimension = divmod(position, self.dimensions)
        rest, agent = divmod(rest, len(self.agents))
        item, replicate = divmod(rest, self.replicates)
        return Unit(item, replicate, self.agents[agent], dimension)

    def items_of(self, first: int, count: int) -> range:
        """Return the items that a page from position `first` needs."""
        return range(first // self.units_per_item, (first + count - 1) // self.units_per_item + 1)


def lanes(
    pools: Sequence[tuple[str, ...]], dimensions: int, replicates: int, batched: Sequence[bool],
    stages: Sequence[int] | None = None,
) -> list[Lane]:  # fmt: skip
    """Group agents by (pools, batched, stage); `pools[i]`, `batched[i]` and `stages[i]` are those of agent i. Order:
    first appearance."""
    groups: dict[tuple[tuple[str, ...], bool, int], list[int]] = {}
    for agent, key in enumerate(zip(pools, batched, stages or [0] * len(pools), strict=True)):
        groups.setdefault(key, []).append(agent)
    return [
        Lane(names, tuple(agents), dimensions, replicates, is_batched, stage)
        for (names, is_batched, stage), agents in groups.items()
    ]


@dataclass(frozen=True, slots=True)
class Window:
    """How many units a lane keeps published: enough to keep the pool busy, and no more than a few seconds of work."""

    units: int
    page: int

    @property
    def low_water(self) -> int:
        """The number of open units at which the lane is planned again."""
        return self.units - self.page


def window(*, rate_per_s: float, limit: int, seconds: float, page_max: int, stride: int, jobs: int = 1) -> Window:
    """Return the window of one lane.

    `rate_per_s` is the pool's present rate of calls, 0 when not known, shared by `jobs` running jobs; `limit` is the
    most calls that may be open. Three times the limit keep every slot busy during two calls, until the lane is planned
    again. Holds: stride <= page <= max(page_max, stride), and page is a multiple of stride.
    """
    calls = max(3 * limit, math.ceil(rate_per_s * seconds / max(1, jobs)))
    page_calls = max(1, min(math.ceil(calls / 3), page_max // stride))
    return Window(units=max(calls, page_calls) * stride, page=page_calls * stride)


def close_window(*, limit: int, page_max: int, stride: int) -> Window:
    """Return the window of a lane whose job may end at any time, so that few units are published in vain.

    One and a half times the limit keep every slot busy while the lane is planned again. Holds as for `window`.
    """
    page_calls = max(1, min(math.ceil(limit / 2), page_max // stride))
    return Window(units=(limit + page_calls) * stride, page=page_calls * stride)
