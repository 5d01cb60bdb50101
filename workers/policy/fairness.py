"""Fair shares of one pool among the projects that have work waiting.

Share of slots: `limit` divided by weight, whole slots; what the division leaves over goes, one slot each, to the
projects that were served least, so the remainder rotates by itself and nobody starves when projects outnumber slots.
Work-conserving: a project passes its share only while no other waiting project is below its own. Strict: never.

A project's maximum is not a share: it holds even if the others leave the pool empty, and no other project waits for one
that is at its maximum.

Slots say little where a rate is the bound (few calls are open, each grant is a turn): there the project served least
goes first. Service is virtual time, tokens reserved over weight (start-time fair queueing, Goyal et al. 1996). A
project that returns from a pause starts at the least service of those present, so that absence earns no credit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dicast.workers.policy.parameters import FairMode


@dataclass(slots=True)
class Standing:
    """One project in one pool. `asked_at` is when it last requested a lease, `waiting` whether it was denied then."""

    open: int = 0
    service: float = 0.0
    asked_at: float = 0.0
    waiting: bool = False


def shares(limit: int, standings: Mapping[str, Standing], weights: Mapping[str, float]) -> dict[str, int]:
    """Return whole slots for each project; they add up to `limit` (to 0 if there is no project)."""
    if not standings:
        return {}
    total = sum(weights.get(p, 1.0) for p in standings)
    result = {p: int(limit * weights.get(p, 1.0) / total) for p in standings}
    remainder = limit - sum(result.values())
    for project in sorted(standings, key=lambda p: (standings[p].service, p))[:remainder]:
        result[project] += 1
    return result


def most_of(project: str, limit: int, project_max: Mapping[str, float]) -> int | None:
    """Return the most open calls of a project under `limit`, at least 1; None if it has no maximum.

    In `project_max` a number below 1 is a share of the limit, and '*' stands for projects that are not named.
    """
    most = project_max.get(project, project_max.get("*"))
    if most is None:
        return None
    return max(1, int(limit * most if most < 1.0 else most))


def may_take(
    project: str,
    standings: Mapping[str, Standing],
    weights: Mapping[str, float],
    *,
    limit: int,
    mode: FairMode,
    rate_bound: bool,
    quantum: float,
) -> bool:
    """Return whether it is `project`'s turn. `standings` holds it and every project with open calls or waiting work.

    Rules, first match wins: mode OFF, or nobody else is here -> yes; at its share: strict -> no, else no while
    another waiting project is below its own; rate bound and more than `quantum` ahead of a waiting one -> no.
    """
    if mode is FairMode.OFF or len(standings) < 2:
        return True
    waiting = [p for p, s in standings.items() if s.waiting and p != project]
    if not waiting and mode is not FairMode.STRICT:
        return True
    slots = shares(limit, standings, weights)
    mine = standings[project]
    if mine.open >= slots[project]:
        if mode is FairMode.STRICT:
            return False
        if any(standings[p].open < slots[p] for p in waiting):
            return False
    return not (rate_bound and any(mine.service > standings[p].service + quantum for p in waiting))


def in_turn(
    projects: Iterable[str],
    standings: Mapping[str, Standing],
    weights: Mapping[str, float],
    *,
    limit: int,
    mode: FairMode,
) -> str | None:
    """Return the project to serve next among `projects`, all of which wait; None if strict shares are used up.

    Projects below their share come first, then those served least.
    """
    present = {p: standings.get(p) or Standing() for p in projects}
    slots = shares(limit, present, weights)
    if mode is FairMode.STRICT:
        present = {p: s for p, s in present.items() if s.open < slots[p]}
    return min(present, key=lambda p: (present[p].open >= slots[p], present[p].service, p), default=None)
