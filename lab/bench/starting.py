"""How long one waits at first: for a job's first result, for the command line, for a worker."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from lab.bench.pipeline import Figures, Machine
from tests.e2e.cluster import ROOT, a_job, until

JOBS, HELPS, WORKERS = 20, 10, 5
POOL = "wide"


def starting() -> Figures:
    """An idle worker and a provider that answers at once: medians, and the slowest job's first result."""
    with Machine("--latency", "0") as m:
        ready = [_ready_s(m) for _ in range(WORKERS)]
        m.worker()
        _job_s(m)  # finds the connections open, as any but the first
        jobs = [_job_s(m) for _ in range(JOBS)]
        helps = [_help_s(m) for _ in range(HELPS)]
    firsts = [first for first, _ in jobs]
    return {
        "first result after submission, ms": 1000 * statistics.median(firsts),
        "slowest first result, ms": 1000 * max(firsts),
        "report of 30 units after submission, ms": 1000 * statistics.median(whole for _, whole in jobs),
        "dicast --help, ms": 1000 * statistics.median(helps),
        "celery -A app worker, ready after, s": statistics.median(ready),
    }


def _ready_s(m: Machine) -> float:
    started = time.monotonic()
    worker = m.cluster.worker()
    ready_s = time.monotonic() - started
    worker.stop()
    return ready_s


def _job_s(m: Machine) -> tuple[float, float]:
    """From before the submission to the first result in the ledger, and to the report."""
    started, first_s = time.monotonic(), 0.0
    job_id = m.cluster.submit(a_job(pool=POOL))
    key = m.cluster.app.ledger._keys.job(job_id)

    def ended() -> bool:
        nonlocal first_s
        done, state = m.redis.hmget(key, "done", "state")
        if not first_s and int(done or 0):
            first_s = time.monotonic() - started
        return bool(state == "completed")

    until(ended, "the job ends")
    return first_s, time.monotonic() - started


def _help_s(m: Machine) -> float:
    started = time.monotonic()
    command = [sys.executable, "-m", "dicast.app.cli.main", "--help"]
    subprocess.run(command, env=m.cluster.environ, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - started
