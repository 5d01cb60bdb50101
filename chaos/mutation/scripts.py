"""Runs the tests against mutated scripts, each in a process forked from one that has all imported."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from chaos.mutation.lua import Mutation

ROOT = Path(__file__).parents[2]
LEDGER, STORE = ROOT / "app" / "ledger", ROOT / "workers" / "store"
TESTS = {
    LEDGER: ("tests/ledger",),
    STORE: (
        "tests/workers/test_leases.py", "tests/workers/test_epoch.py", "tests/workers/test_nodes.py",
        "tests/workers/test_taking.py", "tests/workers/test_reaper.py", "tests/workers/test_result_backend.py",
        "tests/workers/test_pool_state.py", "tests/workers/test_prospects.py", "tests/workers/test_governor.py",
        "tests/workers/test_admission_conformance.py", "tests/ledger",
    ),
}  # fmt: skip
DEADLINE_S = 120.0


def run(mutations: Iterable[Mutation], parallel: int) -> Iterator[tuple[Mutation, bool]]:
    """Each mutation, and whether a test noticed it; one that makes the tests hang is noticed too."""
    for name in ("app.celery", "app.services", "app.tasks", "prometheus_client"):
        importlib.import_module(name)
    _control()
    waiting, running = list(mutations)[::-1], {}
    while waiting or running:
        while waiting and len(running) < parallel:
            mutation = waiting.pop()
            running[_fork(mutation)] = mutation, time.monotonic() + DEADLINE_S
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            mutation, _ = running.pop(pid)
            yield mutation, status != 0
            continue
        for late in [pid for pid, (_, end) in running.items() if time.monotonic() > end]:
            os.killpg(late, signal.SIGKILL)
        time.sleep(0.02)


def _control() -> None:
    """Without a mutation the tests pass, or nothing that follows says anything. Raises `RuntimeError`."""
    for folder in TESTS:
        script = min(folder.glob("*.lua"))
        _, status = os.waitpid(_fork(Mutation(script, 0, "", "")), 0)
        if status:
            raise RuntimeError(f"the tests of {folder} fail without any mutation")


def _fork(mutation: Mutation) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setpgid(0, 0)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        code = _tested(mutation)
    finally:
        os._exit(code)


def _tested(mutation: Mutation) -> int:
    """pytest's exit status with the mutation in place."""
    text, read = mutation.text(), Path.read_text

    def read_text(path: Path, *args: str | None, **options: str | None) -> str:
        return text if path == mutation.script else read(path, *args, **options)

    Path.read_text = read_text  # type: ignore[method-assign, assignment]
    tests = TESTS[mutation.script.parent]
    return int(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]))
