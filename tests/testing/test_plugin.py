"""The pytest plugin, in pytest processes of their own, with a real worker and a simulated provider."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.cluster import DEADLINE_S, ROOT, Cluster, one_worker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
JOB = """
agents: [{name: a, pool: sim}, {name: b, pool: sim}]
dimensions:
  - {id: clear, instructions: Is it clear?}
  - {id: sound, instructions: Is it true?}
"""
POOLS = '[pools.sim]\nprovider = "simulated"\nbase_url = "{url}/v1"\n'
Tests = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, redis_server: str) -> Iterator[Cluster]:
    with one_worker(tmp_path_factory.mktemp("plugin"), f"{redis_server}?db=14", POOLS, "--latency", "0.02") as cluster:
        yield cluster


@pytest.fixture
def run(cluster: Cluster, tmp_path: Path) -> Tests:
    """Runs these tests in a process of their own."""

    def ran(text: str, *options: str, **settings: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "test_it.py").write_text(text)
        (tmp_path / "judges.yaml").write_text(JOB)
        (tmp_path / "pytest.ini").write_text("[pytest]\ndicast_job = judges.yaml\naddopts = --strict-markers\n")
        environ = {**cluster.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **settings}
        environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "pytest", "-p", "dicast.app.testing.plugin", "-v", *options]
        return subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=2 * DEADLINE_S
        )

    return ran


def outcomes(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    told = re.findall(r"::(\w+(?:\[\d+\])?) (PASSED|FAILED|ERROR|XFAIL|XPASS)", done.stdout)
    other = re.findall(r"(PASSED|FAILED|ERROR|XFAIL|XPASS) test_it.py::(\w+(?:\[\d+\])?) *$", done.stdout, re.MULTILINE)
    return dict(told) | {name: outcome for outcome, name in other}


def test_all_texts_go_out_as_one_job_and_each_test_gets_its_own_results(cluster: Cluster, run: Tests) -> None:
    before = len(list(cluster.app.ledger.jobs(1000)))
    done = run(
        """
import pytest

@pytest.mark.parametrize("n", range(20))
def test_many(judge, n):
    judge(text=f"text {n}", at_least=1)

@pytest.mark.dicast(at_least={"sound": 10})
def test_too_high(judge):
    judge(text="never so good", prompt="say something")

@pytest.mark.xfail
@pytest.mark.dicast(at_least=10)
def test_expected_to_fail(judge):
    judge("never so good")

def test_that_fails_by_itself(judge):
    judge(text="whatever", at_least=1)
    assert 1 == 2

def test_without(): pass

def test_no_threshold(judge):
    judge(text="no threshold")

def test_wrong_dimension(judge):
    judge(text="x", dimensions=["clear"], at_least={"nothing": 1})

def test_off_the_scale(judge):
    judge(text="x", dimensions=["clear"], at_least=11)

@pytest.mark.dicast(dimension="clear")
def test_misspelled_marker(judge):
    judge(text="x")
""",
        "-rfE",
    )
    found = outcomes(done)
    assert [found[f"test_many[{n}]"] for n in range(20)] == ["PASSED"] * 20, done.stdout
    assert (found["test_too_high"], found["test_expected_to_fail"]) == ("FAILED", "XFAIL"), done.stdout
    assert (found["test_that_fails_by_itself"], found["test_without"], found["test_no_threshold"]) == (
        "FAILED", "PASSED", "PASSED",
    )  # fmt: skip
    assert re.search(r"sound is \d+\.\d\d; at least 10 is wanted\n +[ab] gave \d+: \w+", done.stdout)
    assert "'nothing' is none of the dimensions; there are clear" in done.stdout
    assert re.search(r"^FAILED test_it.py::test_too_high - [^j].*; at least 10 is wan", done.stdout, re.MULTILINE)
    assert "clear has a scale of 1 to 10, got 11" in done.stdout
    assert "the marker dicast takes dimensions= and at_least=, got dimension" in done.stdout
    assert "4 failed, 22 passed, 1 xfailed, 1 error" in done.stdout and done.returncode == 1
    jobs = list(cluster.app.ledger.jobs(1000))
    assert len(jobs) - before == 1 and jobs[0].units == 24 * 2 * 2


def test_what_is_read_within_a_test_is_judged_at_once_and_rubrics_may_be_named(run: Tests) -> None:
    done = run("""
def test_first(judge):
    judge(text="one", at_least=1)

def test_reading(judge):
    judged = judge(text="two", dimensions=["clear", "safety"])
    assert set(judged.scores) == {"clear", "safety"}
    assert len(judged.opinions) == 4 and judged.wrong is None

def test_last(judge):
    judge(text="three", at_least=1)
""")
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_each_xdist_worker_sends_its_results_home(run: Tests) -> None:
    done = run(
        """
import pytest

@pytest.mark.parametrize("n", range(12))
def test_many(judge, n):
    judge(text=f"text {n}", at_least=11 if n == 7 else 1)
""",
        "-p",
        "xdist.plugin",
        "-n",
        "2",
    )
    found = outcomes(done)
    assert {name for name, outcome in found.items() if outcome == "FAILED"} == {"test_many[7]"}, done.stdout
    assert "1 failed, 11 passed" in done.stdout


def test_what_cannot_be_judged_fails_and_says_why(run: Tests) -> None:
    text = "def test_one(judge):\n    judge(text='one', at_least=1)\n"
    done = run(text, DICAST_NAMESPACE="nobody")
    assert outcomes(done) == {"test_one": "FAILED"} and "no worker is alive" in done.stdout, done.stdout
    done = run(text, "-o", "dicast_job=")
    assert "`judge` needs a job" in done.stdout


def test_what_is_local_is_started_and_stopped(run: Tests, tmp_path: Path) -> None:
    """Also with xdist: once, by the process that runs no test."""
    text = "def test_one(judge):\n    judge(text='one', at_least=1)\n\ndef test_two(judge):\n    judge('two')\n"
    state = str(tmp_path / "state")
    done = run(text, "--dicast-local", "-p", "xdist.plugin", "-n", "2", REDIS_URL="", DICAST_STATE_DIR=state)
    assert outcomes(done) == {"test_one": "PASSED", "test_two": "PASSED"}, done.stdout
    assert "2 passed" in done.stdout
    assert (tmp_path / "state" / "store").is_dir(), "a store of its own"
    assert not [process for process in _processes() if str(tmp_path) in process]


def _processes() -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        found.append(f"{process.info['cwd']}: {' '.join(process.info['cmdline'] or ())}")
    return found
