"""What more workers bring, and what one call for all dimensions of an item brings: ratios of one run.

With everything on one machine, workers beyond its cores can bring nothing; how little they cost is what is seen then.
"""

from __future__ import annotations

import time

import psutil

from lab.bench.pipeline import Figures, Machine
from tests.e2e.cluster import a_job, until

UNITS, DIMENSIONS = 2_400, 10
LIMIT, LATENCY_S = 200, 0.2
SLOT_UNITS = 800
"""For each worker of few slots: so many that beginning and end weigh little."""
POOL = "wide"


def workers() -> Figures:
    """1, 2 and 4 workers on 2,400 calls of 0.2 s, 200 open at once; then the same units in batches of ten."""
    ceiling = {"MAX_CONCURRENT_LLM_CALLS": str(LIMIT), "DICAST_MAX_CONCURRENT_LLM_CALLS_RANGE": str(LIMIT)}
    with Machine("--latency", str(LATENCY_S), **ceiling) as m:
        m.worker()
        one = _units_per_s(m, batching=False)
        batched = _units_per_s(m, batching=True)
        calls = m.provider.stats()["calls"] - UNITS
        m.worker()
        busy_s, began = _busy_s(), time.monotonic()
        two = _units_per_s(m, batching=False)
        cores = (_busy_s() - busy_s) / (time.monotonic() - began)
        m.worker()
        m.worker()
        four = _units_per_s(m, batching=False)
    return {
        "1 worker: units/s": one,
        "2 workers: times as fast": two / one,
        "2 workers: cores in use": cores,
        "cores of the machine": psutil.cpu_count() or 1,
        "4 workers: times as fast": four / one,
        "1 worker, batches: times as fast": batched / one,
        "calls for a batch's ten units": DIMENSIONS * calls / UNITS,
    }


def narrow() -> Figures:
    """1, 2 and 3 workers of 16 slots on calls of 0.5 s: slots bind, and neither the provider nor a core does."""
    settings = {"MAX_CONCURRENT_LLM_CALLS": "48", "DICAST_WORKER_SLOTS": "16"}
    speeds, shares, cores = [], [], []
    with Machine("--latency", "0.5", **settings) as m:
        for count in (1, 2, 3):
            process = m.worker()
            busy_s, all_s, began = sum(process.cpu_times()[:2]), _busy_s(), time.monotonic()
            speeds.append(_units_per_s(m, batching=False, units=SLOT_UNITS * count))
            took_s = time.monotonic() - began
            shares.append((sum(process.cpu_times()[:2]) - busy_s) / took_s)
            cores.append((_busy_s() - all_s) / took_s)
    return {
        "1 worker: units/s": speeds[0],
        "2 workers: times as fast": speeds[1] / speeds[0],
        "3 workers: times as fast": speeds[2] / speeds[0],
        "share of a core that a worker took": max(shares),
        "2 workers: cores in use": cores[1],
        "cores of the machine": psutil.cpu_count() or 1,
    }


def _busy_s() -> float:
    """CPU time of all cores since the start of the machine, whoever used it, s."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def _units_per_s(m: Machine, *, batching: bool, units: int = UNITS) -> float:
    job = a_job(agents=1, dimensions=DIMENSIONS, items=units // DIMENSIONS, pool=POOL)
    started = time.monotonic()
    job_id = m.cluster.submit({**job, "batching": batching})
    until(lambda: m.cluster.done(job_id) == units, "all units are judged", 120)
    took_s = time.monotonic() - started
    m.cluster.report(job_id)
    return units / took_s
