"""The order in which the units waiting at one gate take their turns."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from dicast.workers.admission.request import AdmittedRequest
from dicast.workers.policy.admission import PROJECT_MAX

CROWD_MAX = 256
"""The most messages that a gate takes in addition to `WAITING_MAX`, since others may stand behind them in the queue.
They are messages of jobs at their own limit or, if several projects use the pool, of projects that fill more than their
part."""
JOB_LIMIT = "job_limit"
ASIDE_S = 1.0
"""How long a job that was denied for its own limit steps aside: nothing here says when one of its calls ends
elsewhere."""


class Turns:
    """The turns at one gate. Jobs at their own limit, or of projects at theirs, step aside for a while."""

    def __init__(self) -> None:
        self._aside: dict[str, float] = {}
        """Job -> until when it steps aside. The dict is replaced and never changed, since other threads read it."""

    def takes(self, request: AdmittedRequest) -> bool:
        """Return whether the request takes its turn, that is, its job has not stepped aside."""
        return request.unit.job not in self._aside

    def note(
        self, pending: Iterable[AdmittedRequest], batch: Sequence[AdmittedRequest], reasons: Sequence[str], now: float
    ) -> None:
        """Take in the reasons for which the requests in `batch` were denied, '' for those that were not."""
        waiting = {request.unit.job for request in pending}
        aside = {job: until for job, until in self._aside.items() if now < until and job in waiting}
        for request, reason in zip(batch, reasons, strict=True):
            if reason in (JOB_LIMIT, PROJECT_MAX):
                aside[request.unit.job] = now + ASIDE_S
        self._aside = aside

    def come_back(self, job: str) -> None:
        """End the job's stepping aside: one of its calls has ended here, so it may have another."""
        self._aside = {name: until for name, until in self._aside.items() if name != job}

    def crowd(self, pending: Iterable[AdmittedRequest], projects: int, places: int) -> int:
        """Return how many of the waiting messages do not count against the room: those of jobs that have stepped aside
        and, with several `projects`, those beyond their equal parts of the `places`."""
        aside, units = self._aside, [request.unit for request in pending]
        waiting = Counter(unit.project for unit in units if unit.job not in aside)
        part = places // projects if projects > 1 else len(units)
        crowd = len(units) - waiting.total() + sum(max(0, n - part) for n in waiting.values())
        return min(CROWD_MAX, crowd)


def in_turns(pending: Iterable[AdmittedRequest], most: int) -> list[AdmittedRequest]:
    """Return up to `most` of the waiting requests: the oldest of each project first, then the second of each, and so
    on.

    So a project with a long queue does not hold up others. The same holds for the jobs within a project.
    """
    turns: Counter[tuple[str, str]] = Counter()
    waiting: dict[str, list[tuple[int, int, AdmittedRequest]]] = defaultdict(list)
    for number, request in enumerate(pending):
        unit = request.unit
        waiting[unit.project].append((turns[unit.project, unit.job], number, request))
        turns[unit.project, unit.job] += 1
    ranked = []
    for requests in waiting.values():
        requests.sort()  # no two have one number, so that requests are never compared
        ranked += [(turn, number, request) for turn, (_, number, request) in enumerate(requests)]
    return [request for *_, request in sorted(ranked)[:most]]
