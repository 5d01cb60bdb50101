"""Recovery times on one machine, with the product's own clocks. Every figure is the median of the runs, with its range.

    python -m chaos.measure [--only kill,restart,reset,freeze] [--runs 20]

kill      kill -9 of a worker with 50 calls open and 50 units waiting, another alive: seconds until the next call, until
          50 are open again, and calls made twice
restart   the store is killed and comes back after 2 s: units that failed, seconds until the next call
reset     all connections to the store are reset for 3 s: seconds until each worker has begun a call again
freeze    a worker is stopped for longer than its beacon lasts, and goes on: most calls open at the provider
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from chaos.installation import POOLS, Installation, a_job
from tests.e2e.cluster import Worker, until

OPEN = 50
FREEZE_S = 20.0


def measure_kill(runs: int) -> None:
    pools = POOLS.replace('dialect = "openai"', f'dialect = "openai"\nlimit = {OPEN}')
    with Place(pools=pools, MAX_CONCURRENT_LLM_CALLS=str(OPEN), LLM_CALL_TIMEOUT="20") as place:
        first, whole, repeated, most = [], [], [], []
        for run in range(runs):
            place.heal()
            place.provider.control(latency=3.0, sigma=0.0, reset=True)
            victim, heir = place.workers
            place.freeze(heir.process)  # so that the victim holds everything
            job = submit(place, f"kill-{run}", units=2 * OPEN)
            until(lambda: place.provider.stats()["open"] >= OPEN, "all calls are open")
            place.thaw(heir.process)
            open_then, calls_then = place.provider.stats()["open"], place.provider.stats()["calls"]
            killed = time.monotonic()
            place.kill(victim)
            until(lambda then=calls_then: place.provider.stats()["calls"] > then, "a call begins")
            first.append(time.monotonic() - killed)
            until(lambda: place.provider.stats()["open"] >= OPEN, "all calls are open again")
            whole.append(time.monotonic() - killed)
            report = place.cluster.report(job)
            stats = place.provider.stats()
            assert report["scored"] == 2 * OPEN, report
            repeated.append(stats["calls"] - 2 * OPEN)
            most.append(stats["max_open"])
            assert repeated[-1] <= open_then, f"{repeated[-1]} calls made twice, {open_then} were open"
            assert most[-1] <= OPEN, most
        tell("kill -9, 50 open, 50 waiting: next call after, s", first)
        tell(f"kill -9: {OPEN} calls open again after, s", whole)
        tell("kill -9: calls made twice (at most those open)", repeated)
        tell("kill -9: most calls open at the provider", most)


def measure_restart(runs: int) -> None:
    with Place() as place:
        failed, back = [], []
        for run in range(runs):
            place.heal()
            place.provider.control(latency=0.3, sigma=0.3, reset=True)
            job = submit(place, f"restart-{run}", units=120)
            until(lambda job=job: place.cluster.done(job) >= 30, "some are done")
            place.store.kill()
            time.sleep(2)
            place.store.start()
            healed, calls = time.monotonic(), place.provider.stats()["calls"]
            until(lambda calls=calls: place.provider.stats()["calls"] > calls, "a call begins")
            back.append(time.monotonic() - healed)
            failed.append(place.cluster.report(job)["failed"])
        tell("store killed, back after 2 s: units failed", failed)
        tell("store killed, back after 2 s: next call after its return, s", back)


def measure_reset(runs: int) -> None:
    with Place() as place:
        slowest = []
        for run in range(runs):
            place.heal()
            place.provider.control(latency=0.3, sigma=0.3, reset=True)
            job = submit(place, f"reset-{run}", units=600)
            until(lambda job=job: place.cluster.done(job) >= 30, "some are done")
            place.link.set(reset=True)
            time.sleep(3)
            place.link.set()
            healed = datetime.now(UTC)
            until(lambda healed=healed: all(calls_since(w, healed) for w in place.workers), "every worker calls", 60)
            slowest.append(max(calls_since(w, healed) - healed.timestamp() for w in place.workers))
            place.cluster.app.ledger.cancel(job)
            place.cluster.report(job)
        tell("all connections reset for 3 s: the slower worker calls again after, s", slowest)


def measure_freeze(runs: int) -> None:
    with Place(LLM_CALL_TIMEOUT="5") as place:
        most, stale, failed = [], [], []
        for run in range(runs):
            place.heal()
            place.provider.control(latency=0.5, sigma=0.5, reset=True)
            job = submit(place, f"freeze-{run}", units=600)
            until(lambda job=job: place.cluster.done(job) >= 30, "some are done")
            victim = place.workers[0].process
            place.freeze(victim)
            time.sleep(FREEZE_S)
            place.thaw(victim)
            report = place.cluster.report(job, 120)
            most.append(place.provider.stats()["max_open"])
            stale.append(place.cluster.app.ledger.status(job).counters["stale"])
            failed.append(report["failed"])
        tell(f"worker frozen {FREEZE_S:.0f} s: most calls open at the provider (10 allowed)", most)
        tell(f"worker frozen {FREEZE_S:.0f} s: late results refused", stale)
        tell(f"worker frozen {FREEZE_S:.0f} s: units failed", failed)


class Place(Installation):
    """An installation with the product's own clocks, that cleans up."""

    def __init__(self, **settings: str) -> None:
        super().__init__(clocks="1", **settings)

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def submit(place: Installation, job_id: str, units: int) -> str:
    job = a_job(random.Random(1), job_id)
    job["items"] = [{"id": f"i{n}", "text": f"text {n}"} for n in range(units // 10)]
    job["agents"] = [{"name": f"a{n}", "pool": "sim"} for n in range(2)]
    job["dimensions"] = [{"id": f"d{n}", "instructions": "good?"} for n in range(5)]
    return place.cluster.submit(job)


def calls_since(worker: Worker, moment: datetime) -> float:
    """When the worker first acquired a lease after a moment; 0 if it has not."""
    for line in worker.log.read_bytes().splitlines():
        if line.startswith(b'{"event":"acquired"'):
            at = datetime.fromisoformat(json.loads(line)["ts"])
            if at > moment:
                return at.timestamp()
    return 0.0


def tell(what: str, values: Sequence[float]) -> None:
    figures = (statistics.median(values), min(values), max(values))
    print(f"| {what} | {' | '.join(f'{value:.3g}' for value in figures)} | {len(values)} |", flush=True)


MEASURES: dict[str, tuple[Callable[[int], None], int]] = {
    "kill": (measure_kill, 20),
    "restart": (measure_restart, 5),
    "reset": (measure_reset, 5),
    "freeze": (measure_freeze, 3),
}


def main() -> None:
    parser = argparse.ArgumentParser("python -m chaos.measure", description=__doc__)
    parser.add_argument("--only", default=",".join(MEASURES))
    parser.add_argument("--runs", type=int, help="instead of each one's own number")
    wish: Any = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, {platform.system()} {platform.release()}\n")
    print("| | median | least | most | runs |\n|---|---|---|---|---|")
    for name in wish.only.split(","):
        measure, runs = MEASURES[name]
        measure(wish.runs or runs)


if __name__ == "__main__":
    main()
