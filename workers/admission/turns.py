"""Whose turn it is among the units that wait at one gate."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from dicast.workers.admission.request import AdmittedRequest
from dicast.workers.policy.admission import PROJECT_MAX

CROWD_MAX = 256
"""Messages a gate takes besides those that it holds anyway, since others may stand behind them in the queue: as many as
belong to jobs at their own limit, or, where several projects use the pool, to projects that fill more than their part
of what is held."""
JOB_LIMIT = "job_limit"
ASIDE_S = 1.0
"""A job that was refused for its own limit steps aside for so long: nothing here tells when a call of it ends
elsewhere."""


class Turns:
    """One gate's. Jobs at their own limit, or of projects at theirs, step aside for a while."""

    def __init__(self) -> None:
        self._aside: dict[str, float] = {}
        """Until when; replaced and never changed, for other threads read it."""

    def takes(self, request: AdmittedRequest) -> bool:
        """Whether the request takes its turn, and does not stand aside."""
        return request.unit.job not in self._aside

    def note(
        self, held: Iterable[AdmittedRequest], asked: Sequence[AdmittedRequest], reasons: Sequence[str], now: float
    ) -> None:
        """Why those that asked were refused, '' where they were not."""
        waiting = {request.unit.job for request in held}
        aside = {job: until for job, until in self._aside.items() if now < until and job in waiting}
        for request, reason in zip(asked, reasons, strict=True):
            if reason in (JOB_LIMIT, PROJECT_MAX):
                aside[request.unit.job] = now + ASIDE_S
        self._aside = aside

    def come_back(self, job: str) -> None:
        """A call of the job has ended here: it may have one more."""
        self._aside = {name: until for name, until in self._aside.items() if name != job}

    def crowd(self, held: Iterable[AdmittedRequest], projects: int, places: int) -> int:
        """How many of the waiting messages are in nobody's way: those that stand aside, and, of several `projects`,
        those beyond their equal parts of the `places`."""
        aside, units = self._aside, [request.unit for request in held]
        waiting = Counter(unit.project for unit in units if unit.job not in aside)
        part = places // projects if projects > 1 else len(units)
        crowd = len(units) - waiting.total() + sum(max(0, n - part) for n in waiting.values())
        return min(CROWD_MAX, crowd)


def in_turns(held: Iterable[AdmittedRequest], most: int) -> list[AdmittedRequest]:
    """Up to `most` of the waiting requests: the oldest of each project first, then their second ones, and so on, so
    that a project with a long queue stands in front of nobody; and likewise of each job within its project."""
    turns: Counter[tuple[str, str]] = Counter()
    waiting: dict[str, list[tuple[int, int, AdmittedRequest]]] = defaultdict(list)
    for number, request in enumerate(held):
        unit = request.unit
        waiting[unit.project].append((turns[unit.project, unit.job], number, request))
        turns[unit.project, unit.job] += 1
    ranked = []
    for requests in waiting.values():
        requests.sort()  # no two have one number, so that requests are never compared
        ranked += [(turn, number, request) for turn, (_, number, request) in enumerate(requests)]
    return [request for *_, request in sorted(ranked)[:most]]
