"""`dicast run` with real workers, a real store, a provider over HTTP, and a person at a terminal."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest

from app.terminal.console import Exit
from tests.e2e.cluster import ROOT, Cluster, Simulated, a_job, until
from tests.e2e.conftest import POOL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
DICAST = [sys.executable, "-m", "app.cli"]
Start = Callable[..., Any]


@pytest.fixture
def cluster(tmp_path: Path, redis_url: str) -> Iterator[Start]:
    running: list[Any] = []

    def start(*provider_options: str, worker: bool = True, **settings: str) -> Any:
        provider = Simulated(*provider_options)
        running.append(provider)
        found: Any = Cluster(tmp_path, redis_url, POOL.format(url=provider.base_url), **settings)
        running.append(found)
        found.provider = provider
        found.environ["PYTHONPATH"] = str(ROOT)
        if worker:
            found.worker()
        return found

    yield start
    for part in reversed(running):
        part.stop()


def dicast(cluster: Any, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DICAST, *arguments], cwd=cluster.folder, env={**cluster.environ, **settings}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False, timeout=90,
    )  # fmt: skip


def job_file(cluster: Any, **changes: Any) -> str:
    path = Path(cluster.folder) / "job.json"
    path.write_text(json.dumps({**a_job(agents=2, dimensions=3), **changes}))
    return str(path)


class Person:
    """Somebody at a terminal of 100 columns. `sees` compares texts without what moves the cursor or colours."""

    def __init__(self, cluster: Any, *arguments: str) -> None:
        self.seen = ""
        self._terminal, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, *DICAST, *arguments], cwd=cluster.folder, stdin=theirs, stdout=theirs,
            stderr=theirs, env={**cluster.environ, "TERM": "xterm", "NO_COLOR": "1"}, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)

    def sees(self, text: str, deadline_s: float = 40) -> None:
        """Wait until the text appears, after all that was waited for before."""
        end = time.monotonic() + deadline_s
        while text not in self.seen:
            if not self._read(end):
                raise AssertionError(f"{text!r} did not appear in {self.seen}")
        self.seen = self.seen.partition(text)[2]

    def types(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def leaves(self, deadline_s: float = 40) -> tuple[int, str]:
        """The exit code, and the last that was seen."""
        end = time.monotonic() + deadline_s
        while self._read(end):
            continue
        return self.process.wait(timeout=deadline_s), self.seen

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)

    def _read(self, end: float) -> bool:
        ready, _, _ = select.select([self._terminal], [], [], max(0, end - time.monotonic()))
        if not ready:
            return False
        with contextlib.suppress(OSError):  # how a terminal says that its other side is closed
            piece = os.read(self._terminal, 65536)
            self.seen += ESCAPES.sub("", piece.decode(errors="replace")).replace("\r", "")
            return bool(piece)
        return False


@pytest.fixture
def person() -> Iterator[Callable[..., Person]]:
    people: list[Person] = []

    def sit_down(cluster: Any, *arguments: str) -> Person:
        people.append(Person(cluster, *arguments))
        return people[-1]

    yield sit_down
    for somebody in people:
        somebody.stop()


def test_from_file_to_report_and_export(cluster: Start) -> None:
    c = cluster("--latency", "0.02")
    run = dicast(c, "run", job_file(c))
    assert run.returncode == Exit.OK, run.stderr
    assert "6 of 6 units scored" in run.stdout
    assert "completed: 6 of 6 units" in run.stderr
    job_id = run.stdout.split()[1]

    again = dicast(c, "jobs", "watch", job_id, "--json")
    report = json.loads(again.stdout)
    assert (again.returncode, again.stderr) == (0, "")
    assert (report["job_id"], report["scored"], report["failed"]) == (job_id, 6, 0)
    assert json.loads(dicast(c, "jobs", "show", job_id, "--json").stdout)["report"] == report
    assert "6 of 6 units scored" in dicast(c, "jobs", "show", job_id).stdout

    out = Path(c.folder) / "x.csv"
    assert dicast(c, "jobs", "export", job_id, "--format", "csv", "--to", str(out)).returncode == 0
    with out.open(newline="") as rows:
        assert len(list(csv.DictReader(rows))) == 6
    assert dicast(c, "jobs", "cancel", job_id).stderr == f"Nothing to do: job {job_id} was completed already.\n"

    c.app.store.flushdb()
    assert "6 of 6 units scored" in dicast(c, "jobs", "show", job_id).stdout, "files outlive the ledger"
    assert dicast(c, "jobs", "export", job_id, "--format", "jsonl", "--to", str(out)).returncode == 0


def test_files_are_fetched_or_said_to_be_away(cluster: Start) -> None:
    """The worker's results folder is not this side's; then it cannot be seen at all."""
    c = cluster("--latency", "0.02")
    here = {"DICAST_RESULTS_DIR": str(Path(c.folder) / "nowhere")}
    run = dicast(c, "run", job_file(c), "--json", "--out", "mine", **here)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    folder = Path(c.folder) / "mine" / report["job_id"]
    assert report["files"]["directory"] == str(folder)
    assert len((folder / "opinions.jsonl").read_text().splitlines()) == 6
    assert json.loads((folder / "report.json").read_text()) == report

    shutil.rmtree(c.results)
    run = dicast(c, "jobs", "watch", report["job_id"], "--out", "other", **here)
    assert run.returncode == Exit.FAILED
    assert "6 of 6 units scored" in run.stdout
    assert "cannot be seen from here" in run.stderr
    run = dicast(c, "jobs", "watch", report["job_id"], **here)
    assert run.returncode == Exit.OK
    assert "cannot be seen from here" in run.stderr


def test_failed_units_are_told_by_the_exit_code(cluster: Start) -> None:
    c = cluster("--latency", "0.02", "--model", "broken:fail_5xx=1.0")
    run = dicast(c, "run", job_file(c), "--set", "agents.0.model=broken", "--json")
    assert run.returncode == Exit.FAILED
    assert json.loads(run.stdout)["failed"] == 3
    assert "3 of 6 units have no score" in run.stderr


def test_cancelled_elsewhere(cluster: Start) -> None:
    c = cluster("--latency", "0.3")
    process = subprocess.Popen(
        [*DICAST, "run", job_file(c, id="long"), "--set", "replicates=50", "--json"],
        cwd=c.folder, env=c.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    until(lambda: _done(c, "long") > 3, "some units are done")
    assert dicast(c, "jobs", "cancel", "long").returncode == 0
    out, said = process.communicate(timeout=30)
    assert process.returncode == Exit.INTERRUPTED, said
    assert json.loads(out)["status"] == "cancelled"


def _done(cluster: Any, job_id: str) -> int:
    found = [status for status in cluster.app.ledger.jobs() if status.id == job_id]
    return found[0].done if found else 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_off_a_terminal_a_signal_detaches(cluster: Start, number: signal.Signals) -> None:
    c = cluster("--latency", "0.2")
    process = subprocess.Popen(
        [*DICAST, "run", job_file(c, id="long"), "--set", "replicates=10"],
        cwd=c.folder, env=c.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    until(lambda: _done(c, "long") > 1, "some units are done")
    process.send_signal(number)
    out, said = process.communicate(timeout=20)
    assert (process.returncode, out) == (Exit.INTERRUPTED, ""), said
    assert "Detached. The job goes on:" in said
    assert c.report("long")["scored"] == 60


def test_a_signal_can_mean_cancel(cluster: Start) -> None:
    c = cluster("--latency", "0.2")
    process = subprocess.Popen(
        [*DICAST, "run", job_file(c, id="long"), "--set", "replicates=50", "--json", "--on-interrupt", "cancel"],
        cwd=c.folder, env=c.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    until(lambda: _done(c, "long") > 1, "some units are done")
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=20)
    assert process.returncode == Exit.INTERRUPTED, said
    assert json.loads(out)["status"] == "cancelled"
    assert c.app.ledger.status("long").state == "cancelled"


def test_local_brings_its_own_and_takes_it_away(cluster: Start) -> None:
    c = cluster("--latency", "0.02", worker=False)
    run = dicast(c, "run", job_file(c), "--local", "--json", "--out", "mine")
    assert run.returncode == Exit.OK, run.stderr
    report = json.loads(run.stdout)
    folder = Path(c.folder) / "mine" / report["job_id"]
    assert report["files"]["directory"] == str(folder)
    assert (folder / "opinions.parquet").exists()
    assert not c.results.exists()
    assert c.app.registry.alive() == []


def test_ctrl_c_in_local_cancels_and_stops(cluster: Start, person: Callable[..., Person]) -> None:
    c = cluster("--latency", "0.2", worker=False)
    ann = person(c, "run", job_file(c, id="long"), "--local", "--set", "replicates=50")
    ann.sees("calls open")
    ann.types("\x03")
    ann.sees("cancel the job, or keep watching?")
    ann.sees("(k): ")
    ann.types("\x03")
    ann.sees("never judged")
    code, last = ann.leaves()
    assert code == Exit.INTERRUPTED, last
    assert c.app.ledger.status("long").state == "cancelled"
    assert c.app.registry.alive() == []
