"""Runs the tests against mutated scripts, each in a process forked from one that has collected all of them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lab.chaos.mutation.lua import Mutation

ROOT = Path(__file__).parents[3]
LEDGER, WORKERS = ROOT / "app" / "ledger", ROOT / "workers"
TESTS = {
    LEDGER: (
        "tests/ledger/test_exactly.py", "tests/ledger/test_claims.py", "tests/ledger/test_repeats.py",
        "tests/ledger/test_every_verb_twice.py", "tests/ledger", "tests/judge/test_fail_fast.py",
    ),
    WORKERS: (
        "tests/workers/test_leases.py", "tests/workers/test_epoch.py", "tests/workers/test_nodes.py",
        "tests/workers/test_fetch.py", "tests/workers/test_reaper.py", "tests/workers/test_result_backend.py",
        "tests/workers/test_pool_state.py", "tests/workers/test_pool_health.py", "tests/workers/test_governor.py",
        "tests/workers/test_admission_conformance.py", "tests/ledger",
    ),
}  # fmt: skip
"""The tests of the scripts below a folder, the quickest first."""
OWN = {
    "stop_asking": ("tests/judge/test_fail_fast.py",),
    "submit": ("tests/ledger/test_ledger.py", "tests/ledger/test_incarnations.py"),
    "open_page": ("tests/ledger/test_ledger.py", "tests/ledger/test_forgetful_store.py"),
    "find_lost": ("tests/ledger/test_ledger.py",),
    "close_page": ("tests/ledger/test_ledger.py",),
    "release_claims": ("tests/ledger/test_forgetful_store.py",),
    "list_claims": ("tests/ledger/test_forgetful_store.py",),
    "mark_lost": ("tests/ledger/test_forgetful_store.py",),
    "waits": ("tests/test_waiting.py",),
    "assign": ("tests/ledger/test_claims.py", "tests/domain/test_deployments.py", "tests/workers/test_pool_health.py"),
    "many": ("tests/ledger/test_claims.py", "tests/workers/test_leases.py"),
    "dead_letter": ("tests/workers/test_dead_letters.py",),
    "fetch": ("tests/workers/test_fetch.py",),
    "requeue": ("tests/workers/test_reaper.py",),
    "chord_member": ("tests/workers/test_result_backend.py",),
    "tick": ("tests/workers/test_nodes.py", "tests/workers/test_epoch.py"),
    "deregister": ("tests/workers/test_nodes.py",),
    "clock": ("tests/workers/test_store_clock.py",),
    "epoch": ("tests/workers/test_epoch.py",),
    "governor_read": ("tests/workers/test_governor.py",),
    "governor_commit": ("tests/workers/test_governor.py",),
    "governor_override": ("tests/workers/test_governor.py", "tests/test_cli_governor.py"),
    "governor_look": ("tests/workers/test_pool_health.py", "tests/workers/test_pool_state.py"),
}
"""The tests that are run before those, by script."""
SLOW, ENDS = "test_a_thousand_finished_jobs", ("complete", "close_page")
"""One test takes as long as all the others, and is about the end of jobs alone."""
DEADLINE_S = 120.0

Told = Callable[[Mutation, bool], None]


def run(mutations: Sequence[Mutation], parallel: int, told: Told) -> None:
    """Tell of each mutation whether a test noticed it; one that makes the tests hang is noticed too. Raises
    `RuntimeError` if the tests fail without any, for nothing that follows would say anything then."""
    campaign = _Campaign(mutations, parallel, told)
    files = {test.partition("::")[0] for tests in (*TESTS.values(), *OWN.values()) for test in tests}
    wanted = [test for test in sorted(files) if (ROOT / test).exists()]
    status = int(pytest.main(["-x", "-qq", "-s", "-n", "0", "-p", "no:cacheprovider", *wanted], plugins=[campaign]))
    if campaign.forked:
        os._exit(status)
    if campaign.failure or status:
        raise RuntimeError(campaign.failure or "the tests cannot be collected")


class _Campaign:
    """Stands in the place of the loop over the tests, and lets each fork go through those of its mutation."""

    def __init__(self, mutations: Sequence[Mutation], parallel: int, told: Told) -> None:
        self._waiting, self._parallel, self._told = list(mutations)[::-1], parallel, told
        self._running: dict[int, tuple[Mutation, float]] = {}
        self.forked, self.failure = False, ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """None in a fork: pytest goes on with the tests that it has left in `session`."""
        for folder in sorted({mutation.script.parent for mutation in self._waiting}):
            pid = self._fork(Mutation(min(folder.glob("*.lua")), 0, "", ""), session)
            if not pid:
                return None
            if _ended(pid, os.waitpid(pid, 0)[1]):
                self.failure = f"the tests of {folder} fail without any mutation"
                return True
        while self._waiting or self._running:
            while self._waiting and len(self._running) < self._parallel:
                mutation = self._waiting.pop()
                if not (pid := self._fork(mutation, session)):
                    return None
                self._running[pid] = mutation, time.monotonic() + DEADLINE_S
            self._reap()
        return True

    def _reap(self) -> None:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            mutation, _ = self._running.pop(pid)
            self._told(mutation, _ended(pid, status))
            return
        for late in [pid for pid, (_, end) in self._running.items() if time.monotonic() > end]:
            os.killpg(late, signal.SIGKILL)
        time.sleep(0.02)

    def _fork(self, mutation: Mutation, session: pytest.Session) -> int:
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        self.forked = True
        os.setpgid(0, 0)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        session.items = chosen(mutation.script, session.items)
        _mutate(mutation)
        return 0


def chosen(script: Path, items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The tests of a script in the order in which they are to be run."""
    left, found = list(items), []
    for tests in (*OWN.get(script.stem, ()), *TESTS[WORKERS if script.is_relative_to(WORKERS) else LEDGER]):
        found += [item for item in left if item.nodeid.startswith(tests)]
        left = [item for item in left if not item.nodeid.startswith(tests)]
    return [item for item in found if SLOW not in item.nodeid or script.stem in ENDS]


def _ended(pid: int, status: int) -> bool:
    """Whether a fork's tests failed; nothing that it started is left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return status != 0


def _mutate(mutation: Mutation) -> None:
    text, read = mutation.text(), Path.read_text

    def read_text(path: Path, *args: str | None, **options: str | None) -> str:
        return text if path.resolve() == mutation.script else read(path, *args, **options)

    Path.read_text = read_text  # type: ignore[method-assign, assignment]
