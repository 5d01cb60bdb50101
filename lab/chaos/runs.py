"""One run: a job, one or several seeded faults, the way back to quiet, and the verdict."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis

from dicast.app.ledger.client import JobStatus, UnknownJob
from dicast.app.ledger.records import JobState
from lab.chaos.installation import Installation, a_job
from lab.chaos.shapes import fewest_batches
from tests.e2e.cluster import until

OPEN_BEFORE_S = 0.4
"""A call answered so shortly before a strike may not have been recorded: for its worker it was open still."""


@dataclass(frozen=True)
class Fault:
    """One entry of the catalogue. `inject` spoils and heals again; it returns when nothing is spoilt any more.

    what         happens, in a sentence
    deadline_s   from healing to the end of the job
    weight       how often it is drawn
    bad_answers  the provider misbehaves: units may fail for good
    cancels      the job may end cancelled
    forgets      the store loses the job: it is submitted again
    hears_all    nobody is silent, so nobody's work may be taken over
    loose_log    leases may run out under a silent worker, so that logs alone do not prove the cap
    forgetful    the store may lose its last writes
    unreached    calls may fail before the provider sees them
    rejects      units may end as rejected: their pool is gone
    """

    name: str
    what: str
    inject: Callable[[Run], None]
    deadline_s: float = 30.0
    weight: int = 4
    bad_answers: bool = False
    cancels: bool = False
    forgets: bool = False
    loose_log: bool = False
    hears_all: bool = False
    forgetful: bool = False
    unreached: bool = False
    rejects: bool = False


@dataclass
class Run:
    """One run's facts, for the fault that acts and for the checker that judges."""

    place: Installation
    seed: int
    faults: Sequence[Fault]
    chance: random.Random
    job: dict[str, Any]
    latency_s: float
    strikes: list[float] = field(default_factory=list)
    healed: float = 0.0
    log_sizes: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def job_id(self) -> str:
        return str(self.job["id"])

    @property
    def units(self) -> int:
        rounds: int = self.job.get("replicates", 1)
        return len(self.job["items"]) * len(self.job["agents"]) * len(self.job["dimensions"]) * rounds

    @property
    def fewest_calls(self) -> int:
        """Calls that a run without a fault would make. What was not needed, or answered before it was asked, is told by
        the report; the invariants hold it against the opinions."""
        status = self.status()
        report = (status.report if status is not None else None) or {}
        units = report.get("units", self.units) if self.job.get("probes") else self.units
        if self.job.get("batching") and report.get("spared"):
            return fewest_batches(self.place.cluster.opinions(self.job_id))
        units -= report.get("spared", 0) + report.get("unpublished", 0)
        return units // (len(self.job["dimensions"]) if self.job.get("batching") else 1)

    def strike(self) -> None:
        """What is open at the provider now may be paid for twice."""
        self.strikes.append(time.monotonic())

    def status(self) -> JobStatus | None:
        try:
            return self.place.cluster.app.ledger.status(self.job_id)
        except (UnknownJob, redis.RedisError):
            return None

    def await_moment(self) -> None:
        """A seeded moment of the job: before its start, or when a part of its units is done."""
        part = self.chance.uniform(-0.15, 0.75)
        if part > 0:
            wanted = int(part * self.units)
            end = time.monotonic() + 20
            while (status := self.status()) is None or status.done < wanted:
                if (status is not None and status.state.ended) or time.monotonic() > end:
                    return
                time.sleep(0.02)
        time.sleep(self.chance.uniform(0, self.latency_s))

    def pause(self, seconds: float) -> None:
        """How long a fault lasts."""
        time.sleep(seconds)


@dataclass(frozen=True)
class RunResult:
    """What came of a run. `recovery_s` runs from healing to the end of the job, the work that was left included."""

    fault: str
    seed: int
    violations: list[str]
    recovery_s: float
    seconds: float
    calls: int
    repeated: int


def perform(place: Installation, faults: Sequence[Fault], seed: int) -> RunResult:
    """One run on an installation that is well; whatever is found wrong is in the verdict."""
    from lab.chaos.invariants import judge

    began = time.monotonic()
    chance = random.Random(f"{'+'.join(f.name for f in faults)}/{seed}")
    latency_s = chance.choice([0.1, 0.2, 0.3, 0.5])
    batching = not any(f.bad_answers for f in faults) and chance.random() < 0.25
    job = a_job(chance, f"run-{seed}-{time.monotonic_ns()}", batching=batching)
    run = Run(place, seed, faults, chance, job, latency_s)
    run.log_sizes = {str(log): log.stat().st_size for log in place.logs()}
    place.provider.control(latency=latency_s, sigma=chance.choice([0.0, 0.3]), reset=True)
    place.cluster.submit(job)
    violations: list[str] = []
    try:
        if len(faults) == 1:
            faults[0].inject(run)
        else:
            for fault in faults:
                fault.inject(run)
    except (TimeoutError, redis.RedisError, AssertionError) as error:
        violations.append(f"harness: {type(error).__name__}: {error}")
    run.healed = time.monotonic()
    recovery_s = -1.0
    try:
        if any(f.forgets for f in faults) and ((s := run.status()) is None or s.state is JobState.LOST):
            place.cluster.submit(job)
        deadline_s = max(f.deadline_s for f in faults)
        until(lambda: (s := run.status()) is not None and s.state.ended, "the job ends", deadline_s)
        recovery_s = time.monotonic() - run.healed
    except TimeoutError as error:
        violations.append(f"one outcome, in time: {error}: {run.status()}")
    violations += judge(run, ended=recovery_s >= 0)
    stats = place.provider.stats()
    return RunResult(
        fault="+".join(f.name for f in faults),
        seed=seed,
        violations=violations,
        recovery_s=recovery_s,
        seconds=time.monotonic() - began,
        calls=stats["calls"],
        repeated=max(0, stats["calls"] - run.fewest_calls),
    )
