"""Looks at a job, made up."""

from __future__ import annotations

from dicast.app.cli.following import JobSnapshot
from dicast.app.ledger.client import JobStatus
from dicast.app.ledger.records import JobState


def status(done: int = 0, *, state: JobState = JobState.RUNNING, units: int = 100, **counters: int) -> JobStatus:
    return JobStatus(
        id="job-1",
        state=state,
        project="demo",
        units=units,
        counters={"done": done, **counters},
        limit=5,
        created_ms=0,
        started_ms=0,
        finished_ms=None,
        report=None,
    )


def sight(
    done: int = 0,
    *,
    state: JobState = JobState.RUNNING,
    open_here: int = 5,
    open_all: int = 5,
    workers: int = 1,
    away_s: float = 0.0,
    **counters: int,
) -> JobSnapshot:
    return JobSnapshot(status(done, state=state, **counters), open_here, open_all, workers, away_s)
