"""`dicast`, run as a process or within this one, on a store of the test's own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import typer

from dicast.app.cli.main import main
from tests import processes

ROOT = Path(__file__).parents[1]
JOB = {
    "agents": [{"name": "a"}],
    "dimensions": [{"id": "d", "instructions": "?"}],
    "items": [{"id": "i", "text": "a text"}],
}
POOLS = """
[pools.sim]
provider = "simulated"
base_url = "http://127.0.0.1:9/v1"
"""
_commands = cache(typer.main.get_command)
"""What Typer makes of the functions, each time it is called, for tenths of a second: it is the same each time."""
Dicast = Callable[..., "subprocess.CompletedProcess[str]"]


def listens(path: Path) -> bool:
    """Return whether a server takes connections at a socket, which stands in its folder a little earlier."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


@pytest.fixture
def environ(tmp_path: Path, redis_url: str) -> dict[str, str]:
    (tmp_path / "pools.toml").write_text(POOLS)
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    inherited = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "VIRTUAL_ENV")}
    return {
        **inherited,
        "PYTHONPATH": str(ROOT),
        "REDIS_URL": redis_url,
        "DICAST_POOLS_FILE": str(tmp_path / "pools.toml"),
        "DICAST_RESULTS_DIR": str(tmp_path / "results"),
        "DICAST_STATE_DIR": str(tmp_path / "state"),
        "DICAST_HTML_REPORT": "false",  # a second of the machine a job
    }


@pytest.fixture
def dicast(tmp_path: Path, environ: dict[str, str]) -> Dicast:
    def run(*arguments: str, stdin: str = "", **settings: str) -> subprocess.CompletedProcess[str]:
        return processes.run(["dicast.app.cli.main", *arguments], {**environ, **settings}, tmp_path, stdin)

    return run


@pytest.fixture
def at_once(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Dicast:
    """The same within this process: for tables, whose every row would load everything again."""

    def run(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["dicast", *arguments])
        monkeypatch.setattr("typer.main.get_command", _commands)
        with monkeypatch.context() as changed, pytest.raises(SystemExit) as left:
            for name, value in {**environ, **settings}.items():
                changed.setenv(name, value)
            main()
        out, err = capfdbinary.readouterr()
        assert isinstance(left.value.code, int)
        return subprocess.CompletedProcess(arguments, left.value.code, out.decode(), err.decode())

    return run


def refused(run: subprocess.CompletedProcess[str]) -> str:
    assert (run.returncode, run.stdout) == (2, ""), run.stderr
    assert "Traceback" not in run.stderr
    return run.stderr
