"""Recovery times on one machine, with the product's own clocks. Every figure is the median of the runs, with its range.

    python -m lab.chaos.measure [--only kill,restart,reset,freeze,stop,rate,room] [--runs 20]

kill      kill -9 of a worker with 50 calls open and 50 units waiting, another alive: seconds until the next call, until
          50 are open again, and calls made twice
restart   the store is killed and comes back after 2 s: units that failed, seconds until the next call
reset     all connections to the store are reset for 3 s: seconds until each worker has begun a call again
freeze    a worker is frozen for two minutes, and goes on: most calls open at the provider, late results refused
stop      SIGTERM while the store is away and calls are open: seconds until every worker has ended
rate      a pool of 300 requests a minute, a worker killed, the store restarted, connections reset: most calls that
          arrived in any 60 s and in any 10 s
room      1,000 small jobs: keys in the store when they have ended, and when all that ends by itself has ended
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

import psutil

from dicast.app.ledger.records import JobState
from lab.chaos.installation import LIMIT, POOLS, Installation, a_job
from lab.chaos.invariants import provider_log
from tests.e2e.cluster import Worker, until

OPEN = 50
FREEZE_S = 120.0
RPM = 300
JOBS = 1000


def measure_kill(runs: int) -> None:
    """The heir comes when the victim holds everything, and has loaded what it needs when the victim is killed."""
    pools = POOLS.replace('dialect = "openai"', f'dialect = "openai"\nlimit = {OPEN}\nadaptive = false')
    with MeasuredInstallation(
        workers=1, pools=pools, MAX_CONCURRENT_LLM_CALLS=str(OPEN), LLM_CALL_TIMEOUT="30"
    ) as place:
        first, whole, repeated, most = [], [], [], []
        for run in range(runs):
            (victim,) = place.workers
            place.provider.control(latency=15.0, sigma=0.0, reset=True)
            job = submit(place, f"kill-{run}", units=2 * OPEN)
            until(lambda: place.provider.stats()["open"] >= OPEN, "all calls are open")
            heir = psutil.Process(place.start_worker().process.pid)
            until(lambda heir=heir: heir.cpu_percent(0.5) < 10, "the heir is at rest")
            place.provider.control(latency=3.0)
            open_then, calls_then = place.provider.stats()["open"], place.provider.stats()["calls"]
            assert open_then == OPEN, open_then
            killed = time.monotonic()
            place.kill(victim)
            until(lambda then=calls_then: place.provider.stats()["calls"] > then, "a call begins")
            first.append(time.monotonic() - killed)
            until(lambda then=calls_then: place.provider.stats()["calls"] >= then + OPEN, "as many calls as before")
            whole.append(time.monotonic() - killed)
            report = place.cluster.report(job)
            stats = place.provider.stats()
            assert report["scored"] == 2 * OPEN, report
            repeated.append(stats["calls"] - 2 * OPEN)
            most.append(stats["max_open"])
            assert repeated[-1] <= open_then, f"{repeated[-1]} calls made twice, {open_then} were open"
            assert most[-1] <= OPEN, most
        tell("kill -9, 50 open, 50 waiting: next call after, s", first)
        tell(f"kill -9: {OPEN} calls begun again after, s", whole)
        tell("kill -9: calls made twice (at most those open)", repeated)
        tell("kill -9: most calls open at the provider", most)


def measure_restart(runs: int) -> None:
    with MeasuredInstallation() as place:
        failed, back, whole = [], [], []
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
            failed.append(place.cluster.report(job, 150)["failed"])
            whole.append(time.monotonic() - healed)
        tell("store killed, back after 2 s: units failed", failed)
        tell("store killed, back after 2 s: next call after its return, s", back)
        tell("store killed, back after 2 s: 120 units of 0.3 s done after its return, s", whole)


def measure_reset(runs: int) -> None:
    with MeasuredInstallation() as place:
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
    """Calls may last longer than the frost, so that answers which came meanwhile are late results when it is over."""
    with MeasuredInstallation(LLM_CALL_TIMEOUT=str(FREEZE_S + 30)) as place:
        most, stale, failed = [], [], []
        for run in range(runs):
            place.heal()
            place.provider.control(latency=2.0, sigma=0.5, reset=True)
            job = submit(place, f"freeze-{run}", units=450)  # more than the others can do in the meantime
            until(lambda job=job: place.cluster.done(job) >= 30, "some are done")
            victim = place.workers[0].process
            place.freeze(victim)
            time.sleep(FREEZE_S)
            place.thaw(victim)
            report = place.cluster.report(job, 240)
            most.append(place.provider.stats()["max_open"])
            stale.append(place.cluster.app.ledger.status(job).counters["stale"])
            failed.append(report["failed"])
            assert most[-1] <= LIMIT, most
        tell(f"worker frozen {FREEZE_S:.0f} s: most calls open at the provider ({LIMIT} allowed)", most)
        tell(f"worker frozen {FREEZE_S:.0f} s: late results refused", stale)
        tell(f"worker frozen {FREEZE_S:.0f} s: units failed", failed)


def measure_stop(runs: int) -> None:
    with MeasuredInstallation() as place:
        ended, failed, repeated = [], [], []
        for run in range(runs):
            place.heal()
            place.provider.control(latency=1.5, sigma=0.0, reset=True)
            job = submit(place, f"stop-{run}", units=40)
            until(lambda: place.provider.stats()["open"] >= 8, "calls are open")
            place.store.kill()
            workers, asked = place.workers, time.monotonic()
            for worker in workers:
                worker.process.terminate()
            for worker in workers:
                assert worker.process.wait(timeout=60) == 0
            ended.append(time.monotonic() - asked)
            place.store.start()
            place.heal()
            failed.append(place.cluster.report(job)["failed"])
            repeated.append(place.provider.stats()["calls"] - 40)
        tell("SIGTERM while the store is away, calls of 1.5 s open: all workers ended after, s", ended)
        tell("SIGTERM while the store is away: units failed", failed)
        tell("SIGTERM while the store is away: calls made twice", repeated)


def measure_rate(runs: int) -> None:
    pools = POOLS.replace('dialect = "openai"', f'dialect = "openai"\nrpm = {RPM}')
    with MeasuredInstallation(pools=pools, MAX_CONCURRENT_LLM_CALLS="20") as place:
        minute, moment = [], []
        for run in range(runs):
            place.heal()
            place.provider.control(latency=0.5, sigma=0.5, reset=True)
            job = submit(place, f"rate-{run}", units=400)
            until(lambda job=job: place.cluster.done(job) >= 80, "some are done")
            place.kill(place.workers[0])
            place.heal()
            until(lambda job=job: place.cluster.done(job) >= 180, "more are done")
            place.store.kill()
            time.sleep(2)
            place.store.start()
            until(lambda job=job: place.cluster.done(job) >= 280, "more are done")
            place.link.set(reset=True)
            time.sleep(3)
            place.link.set()
            assert place.cluster.report(job, 180)["scored"] == 400
            arrivals = sorted(entry["arrival"] for entry in provider_log(place))
            minute.append(most_within(arrivals, 60.0))
            moment.append(most_within(arrivals, 10.0))
        tell(f"{RPM} requests a minute, three faults: most calls in any 60 s", minute)
        tell(f"{RPM} requests a minute, three faults: most calls in any 10 s", moment)


def measure_room(runs: int) -> None:
    """Jobs of two units. What is left of the first is what any installation keeps that has worked."""

    def let_time_pass() -> None:
        """Take away every key that ends by itself; living nodes make their own again."""
        client = place.store.client
        mortal = [key for key in client.scan_iter(count=1000) if client.ttl(key) >= 0]
        client.delete(*mortal)

    def small(job_id: str) -> str:
        job = a_job(random.Random(1), job_id)
        job["items"], job["agents"], job["dimensions"] = job["items"][:2], job["agents"][:1], job["dimensions"][:1]
        return place.cluster.submit(job)

    def at_rest() -> bool:
        app, client = place.cluster.app, place.store.client
        return not any(client.exists(app.keys.at(name)) for name in ("unfinished", "outbox", "leases"))

    with MeasuredInstallation() as place:
        place.provider.control(latency=0.01, sigma=0.0, reset=True)
        before, ended, after, seconds = [], [], [], []
        for run in range(runs):
            place.cluster.report(small(f"room-{run}-first"))
            until(at_rest, "rest")
            let_time_pass()
            before.append(immortal(place))
            began = time.monotonic()
            jobs = [small(f"room-{run}-{n}") for n in range(JOBS)]
            until(at_rest, "all jobs end", 600)
            seconds.append(time.monotonic() - began)
            assert all(place.cluster.app.ledger.status(job).state is JobState.COMPLETED for job in jobs)
            ended.append(int(place.store.client.dbsize()))
            let_time_pass()
            after.append(immortal(place))
        tell(f"{JOBS:,} small jobs: until all had ended, s", seconds)
        tell(f"{JOBS:,} small jobs: keys before", before)
        tell(f"{JOBS:,} small jobs: keys when they had ended, their records and reports included", ended)
        tell(f"{JOBS:,} small jobs: keys when what ends by itself had ended", after)


def immortal(place: Installation) -> int:
    """Keys that do not end by themselves, when everybody is at rest: the least of a few looks."""
    client = place.store.client
    looks = []
    for _ in range(5):
        looks.append(sum(client.ttl(key) == -1 for key in client.scan_iter(count=1000)))
        time.sleep(0.3)
    return min(looks)


def most_within(times: Sequence[float], seconds: float) -> int:
    """The most of these ascending times in any window."""
    first, most = 0, 0
    for n, moment in enumerate(times):
        while times[first] <= moment - seconds:
            first += 1
        most = max(most, n - first + 1)
    return most


class MeasuredInstallation(Installation):
    """An installation with the product's own clocks, that cleans up."""

    def __init__(self, *, workers: int = 2, pools: str = POOLS, **settings: str) -> None:
        super().__init__(workers=workers, clocks="1", pools=pools, **settings)

    def __enter__(self) -> MeasuredInstallation:
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
    "stop": (measure_stop, 5),
    "rate": (measure_rate, 2),
    "room": (measure_room, 1),
}


def main() -> None:
    parser = argparse.ArgumentParser("python -m lab.chaos.measure", description=__doc__)
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
