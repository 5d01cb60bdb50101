"""What a job's size costs: memory of store, worker and client, how far ahead it is published, and how it is watched.

The items lie in a JSONL file, and a call judges all ten dimensions of one, as one does at this size. The provider
answers at once, so that nothing but Dicast and the cores bound the pace.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from dicast.app.ledger.client import JobStatus
from dicast.app.operator.jobs import cancel
from dicast.app.pipeline.messages import CONTROL_QUEUE
from dicast.workers.admission.request import QUEUE_PREFIX
from lab.bench.pipeline import Figures, Machine
from tests.e2e.cluster import ROOT, a_job, until

MB = 1e6
DIMENSIONS = 10
TEXT = "The answer explains why the sky is blue, in words that a child could follow, and leaves nothing out. " * 6
MILLION, SECOND_AFTER, CANCEL_AFTER = 1_000_000, 20_000, 50_000
SECOND_UNITS = 3_000
INLINE_ITEMS = 100_000
SIZES = (1_000, 10_000, 100_000)
MEMORY = ("store over its base, MB", "worker's peak, MB", "client's peak, MB")
POOL = "wide"
LIMIT = 50
DEADLINE_S = 400.0
LOOK_EVERY_S = 0.05


class Watched:
    """One installation at work, looked at several times a second: the most of everything that was seen."""

    def __init__(self, machine: Machine, worker: psutil.Process) -> None:
        self._machine, self._worker = machine, worker
        self._store_base = self._store()
        self._client: subprocess.Popen[bytes] | None = None
        self._done, self._moved = 0, time.monotonic()
        self.figures: Figures = {}

    def submit(self, units: int, *, pool: str = POOL, **more: object) -> str:
        """`dicast run` of a job of so many units, by a process that follows it to its end."""
        folder, job_id = self._machine.cluster.folder, f"units-{units}"
        items = units // DIMENSIONS
        with (folder / "items.jsonl").open("w") as file:
            file.writelines(json.dumps({"id": f"item-{n}", "text": f"{n}. {TEXT}"}) + "\n" for n in range(items))
        job = {**a_job(agents=1, dimensions=DIMENSIONS, pool=pool), "id": job_id, "batching": True, **more}
        (folder / "job.json").write_text(json.dumps({**job, "items": "items.jsonl"}))
        command = [sys.executable, "-m", "dicast.app.cli.main", "run", str(folder / "job.json"), "--json"]
        started = time.monotonic()
        with (folder / "client.log").open("wb") as log:
            self._client = subprocess.Popen(
                command, cwd=ROOT, env=self._machine.cluster.environ, stdout=subprocess.DEVNULL, stderr=log
            )
        known = self._machine.cluster.app.ledger
        until(lambda: any(status.id == job_id for status in known.jobs()), "the job is in the ledger", DEADLINE_S)
        self.figures["submission s"] = time.monotonic() - started
        self._moved = time.monotonic()
        return job_id

    def look(self, job_id: str) -> JobStatus:
        """The job's progress now, as whoever watches it sees it."""
        asked = time.monotonic()
        status = self._machine.cluster.app.ledger.status(job_id)
        now = time.monotonic()
        waiting = self._machine.redis.llen(QUEUE_PREFIX + POOL)
        self._most("slowest look at the progress, s", now - asked)
        if status.done != self._done or not status.done:
            self._done, self._moved = status.done, now
        if not status.state.ended and status.done < status.units:
            self._most("progress stood still for, s", now - self._moved)
        self._most("published ahead, units", status.counters["published"] - status.done)
        self._most("messages waiting", waiting)
        self._most("store over its base, MB", (self._store() - self._store_base) / MB)
        self._most("worker's peak, MB", peak_mb(self._worker.pid))
        if self._client is not None and self._client.poll() is None:
            self._most("client's peak, MB", peak_mb(self._client.pid))
        return status

    def wait(self, job_id: str, condition: Callable[[JobStatus], bool], deadline_s: float = DEADLINE_S) -> JobStatus:
        """Look until the condition holds of the job."""
        end = time.monotonic() + deadline_s
        while not condition(status := self.look(job_id)):
            if time.monotonic() > end:
                raise TimeoutError(f"{job_id} is at {status.done} of {status.units}")
            time.sleep(LOOK_EVERY_S)
        return status

    def left_behind(self) -> float:
        """What the store holds more than at the beginning, MB."""
        return (self._store() - self._store_base) / MB

    def stop(self) -> None:
        if self._client is not None:
            self._client.terminate()
            self._client.wait()

    def _store(self) -> int:
        return int(self._machine.redis.info("memory")["used_memory"])

    def _most(self, name: str, value: float) -> None:
        self.figures[name] = max(self.figures.get(name, value), value)


def peak_mb(pid: int) -> float:
    """The most that a process ever held, 0 if it is gone."""
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0.0
    return int(found[1]) * 1024 / MB if found else 0.0


def _machine() -> Machine:
    return Machine(MAX_CONCURRENT_LLM_CALLS=str(LIMIT))


def sized(units: int) -> Figures:
    """One job from submission to report."""
    with _machine() as m:
        watched = Watched(m, m.worker())
        try:
            job_id = watched.submit(units)
            started = time.monotonic()
            watched.wait(job_id, lambda status: status.done == units)
            judged_s = time.monotonic() - started
            watched.wait(job_id, lambda status: status.state.ended)
            joined_s = time.monotonic() - started - judged_s
            kept = m.cluster.app.ledger.status(job_id)
            assert kept.report is not None and kept.report["scored"] == units, kept
            figures = watched.figures
            return {
                "submission s": figures["submission s"],
                "units/s": units / judged_s,
                "report s": joined_s,
                **{name: figures[name] for name in MEMORY},
                "left in the store, MB": watched.left_behind(),
                "published ahead, units": figures["published ahead, units"],
            }
        finally:
            watched.stop()


def of_size(units: int) -> Callable[[], Figures]:
    """The case of one size."""

    def measure() -> Figures:
        return sized(units)

    measure.__doc__ = f"A job of {units:,} units, from submission to report."
    return measure


def inline() -> Figures:
    """100,000 items that come with the job, submitted from Python: they lie in the store until its end."""
    with _machine() as m:
        base = int(m.redis.info("memory")["used_memory"])
        command = [sys.executable, "-m", "lab.bench.scale", str(INLINE_ITEMS)]
        figures: Figures = json.loads(subprocess.check_output(command, cwd=ROOT, env=m.cluster.environ))
        grown = int(m.redis.info("memory")["used_memory"]) - base
        return {**figures, "store for an item of 600 bytes, bytes": grown / INLINE_ITEMS}


def _submit_inline(items: int) -> None:
    from dicast.app.application import app  # noqa: PLC0415  reads the environment

    job = a_job(agents=1, dimensions=1, pool=POOL)
    job["items"] = [{"id": f"item-{n}", "text": f"{n}. {TEXT}"} for n in range(items)]
    before, started = peak_mb(os.getpid()), time.monotonic()
    app.submit(job)
    took_s = time.monotonic() - started
    print(json.dumps({"submission s": took_s, "client before, MB": before, "client's peak, MB": peak_mb(os.getpid())}))


def million() -> Figures:
    """A job of 1,000,000 units: a second job comes after 20,000, and it is cancelled after 50,000."""
    with _machine() as m:
        watched = Watched(m, m.worker())
        try:
            return _million(m, watched)
        finally:
            watched.stop()


def _million(m: Machine, watched: Watched) -> Figures:
    job_id = watched.submit(MILLION)
    started = time.monotonic()
    watched.wait(job_id, lambda status: status.done >= SECOND_AFTER)

    spec = a_job(agents=1, dimensions=DIMENSIONS, items=SECOND_UNITS // DIMENSIONS, pool=POOL, project="second")
    second, submitted = m.cluster.submit({**spec, "batching": True}), time.monotonic()
    before = watched.look(job_id).done
    watched.wait(job_id, lambda _: m.cluster.done(second) > 0)
    start_s = time.monotonic() - submitted
    watched.wait(job_id, lambda _: m.cluster.done(second) == SECOND_UNITS)
    meanwhile = watched.look(job_id).done - before

    watched.wait(job_id, lambda status: status.done >= CANCEL_AFTER)
    judged_s = time.monotonic() - started
    figures = dict(watched.figures)
    asked = time.monotonic()
    cancel(m.cluster.app, job_id)
    figures["cancel: answer, s"] = time.monotonic() - asked
    quiet_since, calls = asked, m.provider.stats()["calls"]
    while not watched.look(job_id).state.ended:
        if (now := m.provider.stats()["calls"]) != calls:
            quiet_since, calls = time.monotonic(), now
        time.sleep(LOOK_EVERY_S)
    figures["cancel: last new call after, s"] = quiet_since - asked
    figures["cancel: report after, s"] = time.monotonic() - asked
    report = m.cluster.report(job_id)
    assert report["scored"] >= CANCEL_AFTER, report
    assert m.redis.llen(CONTROL_QUEUE) == 0
    return {
        "units judged": report["scored"],
        "units/s": CANCEL_AFTER / judged_s,
        **figures,
        "worker's peak with the report, MB": watched.figures["worker's peak, MB"],
        "second job: first result after, s": start_s,
        "second job: share while it ran, %": 100 * SECOND_UNITS / (SECOND_UNITS + meanwhile),
        "left in the store, MB": watched.left_behind(),
    }


if __name__ == "__main__":
    _submit_inline(int(sys.argv[1]))
