"""`dicast run` with real workers, a real store, a provider over HTTP, and a person at a terminal."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import pty
import re
import secrets
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
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from dicast.errors import Exit
from dicast.workers.store import embedded
from tests import processes
from tests.e2e.cluster import ROOT, Cluster, Simulated, a_job, until
from tests.e2e.conftest import POOL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
DICAST = [sys.executable, "-m", "dicast.app.cli.main"]
Sit = Callable[..., Any]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One worker, on a store of its own, for all tests that do not ask for less."""
    folder = tmp_path_factory.mktemp("cluster")
    try:
        with _cluster(folder, embedded.ensure_running(folder).url) as found:
            found.worker()
            yield found
    finally:
        embedded.stop(folder)


@pytest.fixture
def busy(shared: Any) -> Any:
    """Calls take a while."""
    shared.provider.control(latency=0.2)
    return shared


@pytest.fixture
def quick(shared: Any) -> Any:
    shared.provider.control(latency=0.01)
    return shared


@pytest.fixture
def nobody(tmp_path: Path, redis_url: str) -> Iterator[Any]:
    """No worker."""
    with _cluster(tmp_path, redis_url) as found:
        found.provider.control(latency=0.1)
        yield found


@pytest.fixture
def job() -> str:
    """A job id of the test's own."""
    return f"job-{secrets.token_hex(4)}"


@contextlib.contextmanager
def _cluster(folder: Path, redis_url: str) -> Iterator[Any]:
    provider = Simulated("--model", "broken:fail_5xx=1.0")
    found: Any = Cluster(folder, redis_url, POOL.format(url=provider.base_url))
    found.provider = provider
    found.environ["PYTHONPATH"] = str(ROOT)
    try:
        yield found
    finally:
        found.stop()
        provider.stop()


def dicast(cluster: Any, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environ = {**cluster.environ, **settings}
    return processes.run(["dicast.app.cli.main", *arguments], environ, cluster.folder, timeout=90)


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
def person() -> Iterator[Sit]:
    people: list[Person] = []

    def sit_down(cluster: Any, *arguments: str) -> Person:
        people.append(Person(cluster, *arguments))
        return people[-1]

    yield sit_down
    for somebody in people:
        somebody.stop()


def test_from_file_to_report_and_export(quick: Any) -> None:
    run = dicast(quick, "run", job_file(quick))
    assert run.returncode == Exit.OK, run.stderr
    assert "6 of 6 judgements scored" in run.stdout
    assert "completed: 6 of 6 units" in run.stderr
    job_id = run.stdout.split()[0]
    verified = json.loads(dicast(quick, "verify", job_id, "--json").stdout)
    assert verified["differences"] == [] and verified["lock"]["items"] and set(verified["lock"]["files"]) == {
        "opinions.jsonl", "errors.jsonl"
    }  # fmt: skip

    again = dicast(quick, "jobs", "watch", job_id, "--json")
    report = json.loads(again.stdout)
    assert (again.returncode, again.stderr) == (0, "")
    assert (report["job_id"], report["scored"], report["failed"]) == (job_id, 6, 0)
    assert json.loads(dicast(quick, "jobs", "show", job_id, "--json").stdout)["report"] == report

    out = Path(quick.folder) / "x.csv"
    assert dicast(quick, "jobs", "export", job_id, "--format", "csv", "--to", str(out)).returncode == 0
    with out.open(newline="") as rows:
        assert len(list(csv.DictReader(rows))) == 6
    assert dicast(quick, "jobs", "cancel", job_id).stderr == f"Nothing to do: job {job_id} was completed already.\n"

    quick.app.store.delete(quick.app.keys.at("job", job_id))
    assert "6 of 6 judgements scored" in dicast(quick, "jobs", "show", job_id).stdout, "files outlive the ledger"
    assert dicast(quick, "jobs", "export", job_id, "--format", "jsonl", "--to", str(out)).returncode == 0


@pytest.fixture
def priced(quick: Any, tmp_path: Path) -> Any:
    """The same, where commands know a price."""
    pools = tmp_path / "priced.toml"
    text = POOL.format(url=quick.provider.base_url)
    pools.write_text(text.replace('dialect = "openai"', 'dialect = "openai"\nprice = { input = 9, output = 90 }'))
    environ = {**quick.environ, "DICAST_POOLS_FILE": str(pools), "DICAST_CONFIRM_ABOVE": "0.01"}
    return SimpleNamespace(folder=quick.folder, environ=environ)


def test_a_person_is_asked_before_a_dear_job(priced: Any, person: Sit) -> None:
    path = job_file(priced)
    somebody = person(priced, "run", path)
    somebody.sees("6 calls; ")
    somebody.sees("tokens guessed from the texts alone")
    somebody.sees("Submit it?")
    somebody.types("n\n")
    code, seen = somebody.leaves()
    assert code == Exit.REFUSED and "nothing was submitted" in seen

    somebody = person(priced, "run", path)
    somebody.sees("Submit it?")
    somebody.types("y\n")
    assert somebody.leaves()[0] == Exit.OK
    sure = person(priced, "run", path, "--yes")
    code, seen = sure.leaves()
    assert code == Exit.OK and "Submit it?" not in seen and "6 calls; " in seen


def test_a_script_is_never_asked_and_told_the_quote_of_a_dear_job(priced: Any) -> None:
    path = job_file(priced)
    dear = dicast(priced, "run", path, "--json")
    assert dear.returncode == Exit.OK and "6 calls; " in dear.stderr
    told = json.loads(dear.stdout)["quote"]
    assert (told["calls_most"], told["time"]["pool"]) == (6, "sim")
    for settings in ({"DICAST_CONFIRM_ABOVE": "0"}, {"DICAST_CONFIRM_ABOVE": "5"}):
        assert "6 calls; " not in dicast(priced, "run", path, "--json", **settings).stderr


def test_a_quote_is_part_of_validation_and_a_pilot_needs_a_worker(priced: Any, nobody: Any) -> None:
    shown = dicast(priced, "validate", job_file(priced), "--json")
    assert json.loads(shown.stdout)["quote"]["sums"][0]["currency"] == "USD"
    refused = dicast(nobody, "quote", job_file(nobody), "--pilot", "30")
    assert refused.returncode == Exit.REFUSED and "no worker is alive" in refused.stderr
    refused = dicast(nobody, "quote", job_file(nobody), "--local")
    assert refused.returncode == Exit.REFUSED and "say --pilot 30, too" in refused.stderr


def test_judges_are_certified_and_watched(quick: Any) -> None:
    items = [{"id": f"i{n}", "text": f"text {n}"} for n in range(12)]
    changes = {"items": items, "agents": [{"name": "ann"}], "dimensions": [{"id": "clear", "instructions": "?"}]}
    out = Path(quick.folder) / "certificate.json"
    made = dicast(
        quick, "certify", job_file(quick, **changes), "-o", str(out), "--replicates", "2", "--anchors", "5", "--json"
    )
    assert made.returncode == Exit.OK, made.stderr
    certificate = json.loads(made.stdout)
    assert len(certificate["anchors"]) == 5 and certificate == json.loads(out.read_text())
    assert [probe["probe"] for probe in certificate["judges"][0]["dimensions"][0]["probes"]] == ["injection"]

    looked = dicast(quick, "watch", str(out), "-n", "2", "--json")
    assert looked.returncode == Exit.OK, looked.stderr
    (drift,) = json.loads(looked.stdout)["drifts"]
    assert (drift["judge"], drift["judgements"], drift["since"]) == ("ann", 2, None)
    assert "No judge is seen to have changed" in dicast(quick, "watch", str(out), "--look").stdout
    old = {**certificate, "expires": certificate["issued"]}
    out.write_text(json.dumps(old))
    assert dicast(quick, "watch", str(out)).returncode == Exit.GATE_UNTOLD


def test_judges_of_pairs_are_certified_by_their_pairs_and_those_of_lists_too(quick: Any) -> None:
    """There are attacks on single texts alone: to ask for them had every job of pairs refused."""
    texts = {name: f"text of {name}" for name in ("apple", "birch", "cedar")}
    candidates = [{"id": name, "text": text} for name, text in texts.items()]
    lists = [{"id": f"list{n}", "candidates": candidates, "prompt": f"task {n}"} for n in range(2)]
    pair = {"id": "pair", "text_a": "one", "text_b": "another"}
    changes = {
        "agents": [{"name": "ann"}],
        "dimensions": [{"id": "better", "instructions": "?", "scale": "preference"}],
    }
    out = Path(quick.folder) / "certificate.json"
    for more, anchors in (
        ({"items": lists, "pairs": "all"}, {f"list{n}/{two}" for n in range(2) for two in ("1-2", "1-3", "2-3")}),
        ({"items": [pair]}, {"pair"}),
    ):
        made = dicast(
            quick, "certify", job_file(quick, **changes, **more), "-o", str(out), "--replicates", "2", "--json"
        )
        assert made.returncode == Exit.OK, made.stderr
        certificate = json.loads(made.stdout)
        assert {anchor["item"]["id"] for anchor in certificate["anchors"]} == anchors
        assert {anchor["item"]["text_a"] for anchor in certificate["anchors"]} <= {*texts.values(), "one"}
        (area,) = certificate["judges"][0]["dimensions"]
        assert [probe["probe"] for probe in area["probes"]] == ["position"]
        looked = dicast(quick, "watch", str(out), "-n", "1", "--json")
        assert looked.returncode == Exit.OK, looked.stderr
        assert json.loads(looked.stdout)["drifts"][0]["judgements"] == 1, "both orders make one preference"


def test_metadata_to_keep_stands_beside_every_opinion(quick: Any) -> None:
    """Of units with a score and without one."""
    items = [{"id": n, "text": "a text", "metadata": {"lang": lang, "n": n}} for n, lang in enumerate(("en", "de"))]
    path = job_file(quick, items=items, keep=["lang"], dimensions=a_job(dimensions=1)["dimensions"])
    run = dicast(quick, "run", path, "--set", "agents.0.model=broken", "--json")
    report = json.loads(run.stdout)
    assert (report["keep"], report["scored"], report["failed"]) == (["lang"], 2, 2)
    opinions = [json.loads(line) for line in Path(report["files"]["opinions_jsonl"]).read_text().splitlines()]
    assert {(o["item_id"], o["metadata"]["lang"], len(o["metadata"])) for o in opinions} == {
        ("0", "en", 1),
        ("1", "de", 1),
    }
    table = pq.read_table(report["files"]["opinions_parquet"])
    assert sorted(table.column("metadata.lang").to_pylist()) == ["de", "de", "en", "en"]


def test_files_are_fetched_or_said_to_be_away(quick: Any) -> None:
    """The worker's results folder is not this side's; then it cannot be seen at all."""
    here = {"DICAST_RESULTS_DIR": str(Path(quick.folder) / "nowhere")}
    run = dicast(quick, "run", job_file(quick), "--json", "--out", "mine", **here)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    folder = Path(quick.folder) / "mine" / report["job_id"]
    assert report["files"]["directory"] == str(folder)
    assert len((folder / "opinions.jsonl").read_text().splitlines()) == 6
    assert json.loads((folder / "report.json").read_text()) == report

    shutil.rmtree(quick.results / report["job_id"])
    run = dicast(quick, "jobs", "watch", report["job_id"], "--out", "other", **here)
    assert run.returncode == Exit.FAILED
    assert "6 of 6 judgements scored" in run.stdout
    assert "cannot be seen from here" in run.stderr
    run = dicast(quick, "jobs", "watch", report["job_id"], **here)
    assert run.returncode == Exit.OK
    assert "cannot be seen from here" in run.stderr


def test_failed_units_are_told_by_the_exit_code(quick: Any) -> None:
    run = dicast(quick, "run", job_file(quick), "--set", "agents.0.model=broken", "--json")
    assert run.returncode == Exit.FAILED
    assert json.loads(run.stdout)["failed"] == 3
    assert "3 of 6 judgements have no score" in run.stderr


def test_cancelled_elsewhere(busy: Any, job: str) -> None:
    process = subprocess.Popen(
        [*DICAST, "run", job_file(busy, id=job), "--set", "replicates=50", "--json"],
        cwd=busy.folder, env=busy.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    until(lambda: _done(busy, job) > 3, "some units are done")
    assert dicast(busy, "jobs", "cancel", job).returncode == 0
    out, said = process.communicate(timeout=30)
    assert process.returncode == Exit.INTERRUPTED, said
    assert json.loads(out)["status"] == "cancelled"


def _done(cluster: Any, job_id: str) -> int:
    found = [status for status in cluster.app.ledger.jobs() if status.id == job_id]
    return found[0].done if found else 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_off_a_terminal_a_signal_detaches(busy: Any, job: str, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [*DICAST, "run", job_file(busy, id=job), "--set", "replicates=10"],
        cwd=busy.folder, env=busy.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    until(lambda: _done(busy, job) > 1, "some units are done")
    process.send_signal(number)
    out, said = process.communicate(timeout=20)
    assert (process.returncode, out) == (Exit.INTERRUPTED, ""), said
    assert "Detached. The job goes on:" in said
    assert busy.report(job)["scored"] == 60


def test_a_signal_can_mean_cancel(busy: Any, job: str) -> None:
    process = subprocess.Popen(
        [*DICAST, "run", job_file(busy, id=job), "--set", "replicates=50", "--json", "--on-interrupt", "cancel"],
        cwd=busy.folder, env=busy.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    until(lambda: _done(busy, job) > 1, "some units are done")
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=20)
    assert process.returncode == Exit.INTERRUPTED, said
    assert json.loads(out)["status"] == "cancelled"
    assert busy.app.ledger.status(job).state == "cancelled"


def test_ctrl_c_asks(busy: Any, person: Sit, job: str) -> None:
    ann = person(busy, "run", job_file(busy, id=job), "--set", "replicates=50")
    ann.sees("calls open")
    ann.types("\x03")
    ann.sees("Interrupted. Detach (the job goes on), cancel it, or keep watching?")
    ann.sees("(k): ")
    ann.types("k\r")
    ann.sees("calls open")
    ann.types("\x03")
    ann.sees("(k): ")
    ann.types("c\r")
    ann.sees("Cancelling: no new calls")
    ann.sees("cancelled")
    code, last = ann.leaves()
    assert code == Exit.INTERRUPTED, last
    assert "never made" in last


def test_ctrl_c_twice_detaches(busy: Any, person: Sit, job: str) -> None:
    ann = person(busy, "run", job_file(busy, id=job), "--set", "replicates=5")
    ann.sees("calls open")
    ann.types("\x03")
    ann.sees("(k): ")
    ann.types("\x03")
    code, last = ann.leaves()
    assert code == Exit.INTERRUPTED
    assert "Detached. The job goes on:" in last
    assert busy.report(job)["scored"] == 30


def test_local_brings_its_own_and_takes_it_away(nobody: Any) -> None:
    run = dicast(nobody, "run", job_file(nobody), "--local", "--json", "--out", "mine", DICAST_HTML_REPORT="true")
    assert run.returncode == Exit.OK, run.stderr
    report = json.loads(run.stdout)
    folder = Path(nobody.folder) / "mine" / report["job_id"]
    assert (folder / "report.html").stat().st_mtime_ns >= (folder / "report.json").stat().st_mtime_ns
    assert "report.html" in run.stderr
    assert report["files"]["directory"] == str(folder)
    assert (folder / "opinions.parquet").exists()
    assert not nobody.results.exists()
    assert nobody.app.registry.alive() == []


def test_ctrl_c_in_local_cancels_and_stops(nobody: Any, person: Sit, job: str) -> None:
    ann = person(nobody, "run", job_file(nobody, id=job), "--local", "--set", "replicates=50")
    ann.sees("calls open")
    ann.types("\x03")
    ann.sees("Cancel the job (its worker stops with it), or keep watching?")
    ann.sees("(k): ")
    ann.types("\x03")
    ann.sees("never made")
    code, last = ann.leaves()
    assert code == Exit.INTERRUPTED, last
    assert nobody.app.ledger.status(job).state == "cancelled"
    assert nobody.app.registry.alive() == []
