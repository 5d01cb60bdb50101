"""How long one waits at first: for a job's first result, for the command line, for a worker, for all of it at once.

`python -m lab.bench.starting` tells the same figures one by one, with the CPU time that each took: on a machine that
does other things too, it is what can be compared.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

from lab.bench.pipeline import POOLS, Figures, Machine, cpu_s
from tests.e2e.cluster import ROOT, Cluster, Simulated, a_job, until

JOBS, HELPS, WORKERS, RUNS = 20, 10, 5, 5
POOL = "wide"
IMPORT = "import dicast.app.celery"


class Took(NamedTuple):
    """Seconds of the clock, and of all cores."""

    wall_s: float
    cpu_s: float


def starting() -> Figures:
    """An idle worker and a provider that answers at once: medians, and the slowest job's first result."""
    with Machine("--latency", "0") as m:
        ready = [_ready_s(m) for _ in range(WORKERS)]
        m.worker()
        _job_s(m)  # finds the connections open, as any but the first
        jobs = [_job_s(m) for _ in range(JOBS)]
        helps = [_help_s(m) for _ in range(HELPS)]
    firsts = [first for first, _ in jobs]
    local = [run_local() for _ in range(RUNS)]
    imports = imported()
    return {
        "first result after submission, ms": 1000 * statistics.median(firsts),
        "slowest first result, ms": 1000 * max(firsts),
        "report of 30 units after submission, ms": 1000 * statistics.median(whole for _, whole in jobs),
        "dicast --help, ms": 1000 * statistics.median(helps),
        "celery -A app worker, ready after, s": statistics.median(ready),
        "dicast run --local, first answer after, s": statistics.median(took.wall_s for took in local),
        "dicast run --local, CPU to the first answer, s": statistics.median(took.cpu_s for took in local),
        "import of the application, ms": 1000 * imports.wall_s,
        "import of the application, CPU ms": 1000 * imports.cpu_s,
    }


def run_local() -> Took:
    """From the command's start, with nothing running, to the provider's first answer to a job of one unit; CPU time is
    that of the command and of all that it had started by then."""
    with tempfile.TemporaryDirectory(prefix="dicast-bench-") as name:
        folder, provider = Path(name), Simulated("--latency", "0")
        try:
            environ = Cluster(folder, "", POOLS.replace("{url}", provider.base_url)).environ
            job = folder / "job.json"
            job.write_text(json.dumps(a_job(agents=1, dimensions=1, pool=POOL)))
            return _first_answer(environ, job, provider)
        finally:
            provider.stop()


def _first_answer(environ: Mapping[str, str], job: Path, provider: Simulated) -> Took:
    command = [sys.executable, "-m", "dicast", "run", "--local", "--json", str(job)]
    with (job.parent / "said").open("wb") as said:
        started = time.monotonic()
        run = psutil.Popen(command, env=environ, cwd=job.parent, stdout=said, stderr=said)
        try:
            until(lambda: provider.stats()["accepted"] or run.poll() is not None, "the first answer")
            wall_s = time.monotonic() - started
            spent_s = sum(map(cpu_s, (run, *run.children(recursive=True))))
            assert run.wait(60) == 0, (job.parent / "said").read_text()
        finally:
            if run.poll() is None:
                run.terminate()
                run.wait(60)
    return Took(wall_s, spent_s)


def imported() -> Took:
    """What the import of all that `celery -A app worker` imports first adds to the start of Python."""
    application, python = (min((_timed(program) for _ in range(RUNS)), key=lambda took: took.cpu_s)
                           for program in (IMPORT, ""))  # fmt: skip
    return Took(application.wall_s - python.wall_s, application.cpu_s - python.cpu_s)


def _timed(program: str) -> Took:
    started, process = time.monotonic(), subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, program
    return Took(time.monotonic() - started, used.ru_utime + used.ru_stime)


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


def main() -> None:
    for _ in range(RUNS):
        print("dicast run --local, first answer: {:.2f} s, CPU {:.2f} s".format(*run_local()), flush=True)
    print("import of the application: {:.2f} s, CPU {:.2f} s".format(*imported()))


if __name__ == "__main__":
    main()
