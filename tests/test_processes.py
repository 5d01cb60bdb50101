"""A forked program is as one that was executed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests import processes

PROGRAM = """
import atexit, os, sys
print(sys.argv[1:], os.environ.get("ONLY"), os.environ.get("HOME"), os.getcwd(), sys.stdin.read())
print(os.getsid(0) == os.getpid())
print("an error", file=sys.stderr)
atexit.register(print, "the end")
sys.exit(int(sys.argv[1]))
"""


LOADED = """
import sys
print({"celery.apps.worker", "dicast.app.pipeline.judge", "lab.provider.server"} <= set(sys.modules))
print("dicast.app.celery" in sys.modules)
"""


@pytest.mark.parametrize("fork", ["0", "1"])
def test_it_has_its_own_environment_folder_files_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fork: str
) -> None:
    monkeypatch.setenv("TEST_FORK", fork)
    (tmp_path / "program.py").write_text(PROGRAM)
    alike = {name: os.environ[name] for name in processes.AT_LOADING if name in os.environ}
    done = processes.run(["program", "3"], {"ONLY": "this", **alike}, tmp_path, "read me")
    alone = fork == "1"  # `run` leaves an executed program in the session of the tests
    assert (done.returncode, done.stderr) == (3, "an error\n")
    assert done.stdout == f"['3'] this None {tmp_path} read me\n{alone}\nthe end\n"


@pytest.mark.parametrize("fork", ["0", "1"])
def test_a_program_that_is_given_as_text_is_the_main_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fork: str
) -> None:
    monkeypatch.setenv("TEST_FORK", fork)
    program = "import sys, __main__\nfrom beside import here\nprint(sys.argv, __main__.here, __name__)\n1 / 0\n"
    (tmp_path / "beside.py").write_text("here = True\n")
    done = processes.run(["-c", program, "an argument"], dict(os.environ), tmp_path)
    assert (done.returncode, done.stdout) == (1, "['-c', 'an argument'] True __main__\n")
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize("fork", ["0", "1"])
def test_its_signals_and_its_exit_code_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fork: str) -> None:
    monkeypatch.setenv("TEST_FORK", fork)
    (tmp_path / "sleeper.py").write_text("import time\ntime.sleep(60)\n")
    with (tmp_path / "log").open("wb") as log:
        process = processes.start(["sleeper"], dict(os.environ), tmp_path, log.fileno(), log.fileno())
    assert isinstance(process, processes.Forked) is (fork == "1")
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait(10) == process.returncode == -signal.SIGKILL


def test_a_program_that_is_loaded_in_another_way_is_executed(tmp_path: Path) -> None:
    (tmp_path / "nothing.py").write_text("")
    with (tmp_path / "log").open("wb") as log:
        environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
        process = processes.start(["nothing"], environ, tmp_path, log.fileno(), log.fileno())
    assert not isinstance(process, processes.Forked)
    assert process.wait(30) == 0


def test_the_server_has_loaded_what_workers_need(tmp_path: Path) -> None:
    """Else the tests would pass as well, and take twice as long."""
    (tmp_path / "loaded.py").write_text(LOADED)
    assert processes.run(["loaded"], dict(os.environ), tmp_path).stdout == "True\nFalse\n"
