"""Checks whether jobs that have not ended wait for something."""

from __future__ import annotations

from collections.abc import Iterator

from dicast.app.application import Dicast
from dicast.app.doctor import waiting
from dicast.app.doctor.finding import Finding, Severity
from dicast.app.ledger.states import JobState
from dicast.app.monitoring.snapshot import read_shared

JOBS_READ = 100
"""How many of the newest jobs are checked; `dicast jobs show` explains older ones."""
SHOWN_MAX = 5


def jobs(dicast: Dicast) -> Iterator[Finding]:
    """Yield what jobs wait for, and how many others are under way."""
    going = [status for status in dicast.ledger.jobs(JOBS_READ) if not status.state.ended]
    if not going:
        return
    shared = read_shared(dicast.store_url, dicast.keys)
    # Without a worker all jobs wait for one, which the check of the workers reports once.
    waits = [(status, waiting.reason(dicast, status, shared)) for status in going] if dicast.registry.alive() else []
    waiting_jobs = [(status, why) for status, why in waits if why is not None]
    for status, why in waiting_jobs[:SHOWN_MAX]:
        yield Finding(Severity.WARNING, "jobs", f"job {status.id} waits: {why}", f"dicast jobs show {status.id}")
    if len(waiting_jobs) > SHOWN_MAX:
        yield Finding(Severity.WARNING, "jobs", f"{len(waiting_jobs) - SHOWN_MAX} more jobs wait", "dicast jobs list")
    others = len(going) - len(waiting_jobs)
    if others:
        cancelling = sum(status.state is JobState.CANCELLING for status in going)
        yield Finding(
            Severity.OK, "jobs", f"{others} under way" + (f", {cancelling} being cancelled" if cancelling else "")
        )
