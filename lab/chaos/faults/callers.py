"""Faults of those who submit, cancel and schedule."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import redis

from lab.chaos.catalogue import fault
from lab.chaos.faults.processes import kill_worker
from lab.chaos.runs import Run
from tests.e2e.cluster import ROOT, until


@fault(weight=6, cancels=True)
def cancel(run: Run) -> None:
    """The job is cancelled."""
    run.await_moment()
    with contextlib.suppress(redis.RedisError):
        run.place.cluster.app.ledger.cancel(run.job_id)


@fault(weight=3)
def kill_beat(run: Run) -> None:
    """kill -9 of the scheduler and of a worker."""
    run.await_moment()
    beat = run.place.beat
    beat.kill()
    beat.wait()
    kill_worker(run)


@fault(weight=2)
def two_beats(run: Run) -> None:
    """A second scheduler, and kill -9 of a worker."""
    run.place.start_beat()
    kill_worker(run)


@fault(weight=2)
def freeze_beat(run: Run) -> None:
    """The scheduler is frozen, a worker killed, and the scheduler wakes up."""
    beat = run.place.beat
    run.place.freeze(beat)
    kill_worker(run)
    run.pause(2)
    run.place.thaw(beat)


@fault(weight=3)
def kill_submitter(run: Run) -> None:
    """Another process submits a job, is killed, and the same job is submitted again: it is whole, and one."""
    place, other = run.place, {**run.job, "id": run.job_id + "-b"}
    program = f"from dicast.app.application import app\nprint('go', flush=True)\napp.submit({other!r})\n"
    submitter = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE,
        env={**place.cluster.environ, "REDIS_URL": place.store.url},
    )  # fmt: skip
    assert submitter.stdout is not None
    submitter.stdout.readline()
    run.pause(run.chance.uniform(0, 0.08))
    submitter.kill()
    submitter.wait()
    submitter.stdout.close()
    until(lambda: (s := run.status()) is not None and s.state.ended, "the job ends", 30)
    place.provider.control(reset=True)
    run.job["id"] = other["id"]
    place.cluster.submit(other)
