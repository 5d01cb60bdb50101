"""`python -m lab.chaos.plain`: the campaign's faults against plain Celery, and the table of what came of them."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import redis

from lab.chaos.canaries import API_KEY, PASSWORD
from lab.chaos.faults import CATALOGUE
from lab.chaos.installation import Installation, Link, StoreProcess, a_job
from lab.chaos.invariants import _provider
from lab.chaos.runs import Run
from tests.e2e.cluster import ROOT, Simulated, Worker, until

FAULTS = (
    "nothing", "kill_worker", "kill_all_workers", "freeze_worker", "stop_politely", "restart_store",
    "reset_connections", "kill_clients", "black_hole", "store_read_only", "store_full", "burst_of_429", "answers_hang",
    "provider_refuses",
)  # fmt: skip
DEADLINE_S = 90.0
"""Longer than its visibility timeout of 60 s."""


class PlainWorker(Worker):
    """Two of ten threads each make up the same slots as ours."""

    def __init__(self, environ: dict[str, str], name: str, log: Path) -> None:
        self.log = log
        command = [sys.executable, "-m", "celery", "-A", "lab.chaos.plain.pipeline", "worker", "-P", "threads",
                   "-c", "10", "-n", f"{name}@%h", "--loglevel", "INFO"]  # fmt: skip
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command, env=environ, cwd=ROOT, stdout=file, stderr=file, start_new_session=True
            )


class PlainInstallation(Installation):
    """Store, proxies and provider as ever; the workers are plain Celery's."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dicast-plain-"))
        self._wanted, self._parts, self.beats, self.frozen = 2, [], [], set()
        self.arm_file = self.folder / "arm"
        self.dead_nodes = self.folder / "dead.jsonl"
        self.dead_nodes.touch()
        self.store = self._part(StoreProcess(self.folder / "store"))
        self.link = self._part(Link(str(self.store.socket)))
        self.provider = self._part(Simulated("--log", str(self.folder / "provider.jsonl"), "--api-key", API_KEY))
        self.provider_link = self._part(Link(self.provider.base_url.removeprefix("http://")))
        environ = {
            **os.environ,
            "REDIS_URL": f"redis://:{PASSWORD}@127.0.0.1:{self.link.port}/0",
            "PROVIDER_URL": f"http://127.0.0.1:{self.provider_link.port}/v1",
            "CHAOS_KEY": API_KEY,
        }
        self.cluster: Any = SimpleNamespace(workers=[], environ=environ, app=SimpleNamespace(close=lambda: None))
        self.heal()

    def start_worker(self, *, wait: bool = True) -> Worker:
        name = f"w{len(self.cluster.workers)}"
        worker = PlainWorker(self.cluster.environ, name, self.folder / f"{name}.log")
        self.cluster.workers.append(worker)
        if wait:
            until(worker.ready, "a worker is ready")
        return worker

    def start_beat(self) -> Any:
        """There is none."""

    def note_death(self, worker: Worker) -> None:
        """Nobody replays these logs."""

    def submit(self, job: str, units: list[tuple[str, str]]) -> None:
        # An orderly exit would have Celery unsubscribe from each of the results, with modules that are gone by then.
        program = f"import os\nfrom lab.chaos.plain.pipeline import submit\nsubmit({job!r}, {units!r})\nos._exit(0)\n"
        subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=self.cluster.environ, check=True)


class PlainRun(Run):
    """Asks the plain pipeline's own keys."""

    def status(self) -> Any:
        client = self.place.store.client
        try:
            return SimpleNamespace(
                done=client.hlen(f"done:{self.job_id}"),
                state=SimpleNamespace(ended=bool(client.exists(f"report:{self.job_id}"))),
            )
        except OSError:
            return None


def perform(place: PlainInstallation, name: str, seed: int) -> tuple[list[str], float]:
    """What was violated, and the seconds from healing to the end of the job (-1: it did not end)."""
    chance = random.Random(f"{name}/{seed}")
    latency_s = chance.choice([0.1, 0.2, 0.3, 0.5])
    job = a_job(chance, f"plain-{seed}-{time.monotonic_ns()}")
    run = PlainRun(place, seed, [CATALOGUE[name]], chance, job, latency_s)
    run.log_sizes = {str(log): log.stat().st_size for log in place.logs()}
    units = [
        (f"{i['id']}/{a['name']}/{d['id']}", f"{a['persona']} {d['instructions']} {i['text']}")
        for i in job["items"] for a in job["agents"] for d in job["dimensions"]
    ]  # fmt: skip
    place.provider.control(latency=latency_s, sigma=0.2, reset=True)
    place.submit(run.job_id, units)
    found = []
    try:
        CATALOGUE[name].inject(run)
    except (TimeoutError, AssertionError, redis.RedisError) as error:
        found.append(f"{type(error).__name__}: {error}")
    healed, recovery_s = time.monotonic(), -1.0
    try:
        until(lambda: (s := run.status()) is not None and s.state.ended, "the job ends", DEADLINE_S)
        recovery_s = time.monotonic() - healed
    except TimeoutError:
        done = place.store.client.hlen(f"done:{run.job_id}")
        found.append(f"one outcome, in time: no report after {DEADLINE_S:.0f} s, {done} of {run.units} units done")
    else:
        report = place.store.client.hgetall(f"report:{run.job_id}")
        if len(report) != run.units:
            found.append(f"one outcome: {len(report)} of {run.units} units")
        if any(report.values()) and not CATALOGUE[name].bad_answers:
            found.append(f"one outcome: {sum(map(bool, report.values()))} units failed")
    return found + _provider(run), recovery_s


def main() -> None:
    parser = argparse.ArgumentParser("python -m lab.chaos.plain", description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--parallel", type=int, default=4, help="most of the time is waiting")
    wish = parser.parse_args()
    names = wish.faults.split(",")
    with ThreadPoolExecutor(wish.parallel) as pool:
        runs = {name: [pool.submit(on_its_own, name, seed) for seed in range(wish.repeat)] for name in names}
        print("| fault | runs | violations | to the end of the job, s: median / max | what |\n|---|---|---|---|---|")
        for name, outcomes in runs.items():
            found = [outcome.result() for outcome in outcomes]
            times = [recovery_s for _, recovery_s in found if recovery_s >= 0]
            bad = [violations for violations, _ in found if violations]
            shown = f"{statistics.median(times):.1f} / {max(times):.1f}" if times else "-"
            what = "; ".join([violation for violations in bad for violation in violations][:2])
            print(f"| {name.replace('_', ' ')} | {len(found)} | {len(bad)} | {shown} | {what} |", flush=True)


def on_its_own(name: str, seed: int) -> tuple[list[str], float]:
    """One run on an installation of its own."""
    place = PlainInstallation()
    try:
        return perform(place, name, seed)
    finally:
        place.stop()
        shutil.rmtree(place.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
