"""What more workers bring, and what one call for all dimensions of an item brings: ratios of one run.

With everything on one machine, workers beyond its cores can bring nothing; how little they cost is what is seen then.
"""

from __future__ import annotations

import time

from lab.bench.pipeline import Figures, Machine
from tests.e2e.cluster import a_job, until

UNITS, DIMENSIONS = 2_400, 10
LIMIT, LATENCY_S = 200, 0.2
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
        two = _units_per_s(m, batching=False)
        m.worker()
        m.worker()
        four = _units_per_s(m, batching=False)
    return {
        "1 worker: units/s": one,
        "2 workers: times as fast": two / one,
        "4 workers: times as fast": four / one,
        "1 worker, batches: times as fast": batched / one,
        "calls for a batch's ten units": DIMENSIONS * calls / UNITS,
    }


def _units_per_s(m: Machine, *, batching: bool) -> float:
    job = a_job(agents=1, dimensions=DIMENSIONS, items=UNITS // DIMENSIONS, pool=POOL)
    started = time.monotonic()
    job_id = m.cluster.submit({**job, "batching": batching})
    until(lambda: m.cluster.done(job_id) == UNITS, "all units are judged", 120)
    took_s = time.monotonic() - started
    m.cluster.report(job_id)
    return UNITS / took_s
