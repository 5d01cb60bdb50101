"""The worker of `dicast run --local` is loaded before one knows whether it is needed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest

from dicast.app.cli.local_worker import EarlyWorker
from dicast.config.settings import Settings
from tests.patience import Stopwatch

ROOT = Path(__file__).parents[1]


@pytest.fixture
def environ(environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """Of a worker, as this process has it, too."""
    given = {**environ, "DICAST_STATE_DIR": str(tmp_path / "untouched"), "PYTHONPATH": str(ROOT)}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return Settings.from_env(given).environ()


def until(condition: Callable[[], object]) -> None:
    watch = Stopwatch()
    while not condition():
        assert watch.s < 60
        time.sleep(0.02)


def test_one_that_is_not_needed_is_gone_and_has_touched_nothing(environ: Mapping[str, str]) -> None:
    with EarlyWorker({}) as early:
        process = psutil.Process(early._process.pid)
        assert process.is_running()
    assert not process.is_running()
    assert not Path(environ["DICAST_STATE_DIR"]).exists()


def test_one_whose_command_dies_ends_by_itself(environ: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "dicast.app.cli.local_worker"]
    ended = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert not Path(environ["DICAST_STATE_DIR"]).exists()


@pytest.mark.parametrize("changed", [False, True])
def test_one_that_is_told_becomes_the_worker_with_the_settings_that_it_is_told(
    environ: Mapping[str, str], changed: bool, tmp_path: Path
) -> None:
    """Where those are not the ones that it has read, it begins anew."""
    told = {**environ, "DICAST_WORKER_SLOTS": "3"} if changed else environ
    log = tmp_path / "worker.log"
    with EarlyWorker({}) as early:
        process = early.begin("mine@here", told, log)
    assert process is not None and process.poll() is None
    try:
        until(lambda: process.poll() is not None or (log.exists() and b"concurrency: " in log.read_bytes()))
        assert ("celery" in psutil.Process(process.pid).cmdline()) == changed
        assert (b"concurrency: 3 " in log.read_bytes()) == changed
    finally:
        process.kill()
        process.wait()


def test_one_that_has_ended_cannot_begin(environ: Mapping[str, str], tmp_path: Path) -> None:
    with EarlyWorker({"DICAST_WORKER_SLOTS": "none at all"}) as early:
        early._process.wait(60)
        assert early.begin("mine@here", environ, tmp_path / "log") is None
