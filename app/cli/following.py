"""Follows a job to its end. The ledger is polled several times a second, and its state alone decides.

A separate thread polls, so that a store that does not answer never blocks the person at the keyboard.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from types import FrameType
from typing import Any

from redis.exceptions import RedisError

from dicast.app.cli.progress import JobSnapshot
from dicast.app.ledger.client import JobStatus, LedgerClient, UnknownJob
from dicast.app.ledger.states import JobState
from dicast.errors import DicastError, Exit
from dicast.workers.nodes.registry import Registry

LOOK_EVERY_S = 0.25
WORKERS_EVERY_S = 2.0
TICK_S = 0.05
STILL_S = 3.0
"""After so long without progress, the reason is looked up."""
HURRY_S = 10.0
"""How long a cancelled job may take to end if nobody is at the terminal."""
AWAY_AFTER_S = 2.0
STORE_AWAY_MAX_S = 600.0
"""A store that does not answer for longer ends the watching; the job goes on when the store is back."""


class StoreAway(DicastError, RuntimeError):
    """The store has not answered for too long. The job is not lost by that."""

    problem = "store-away"

    exit_code = Exit.INTERRUPTED


class JobVanished(DicastError, LookupError):
    """The ledger no longer has the job: the store lost its data, or the job's retention is over."""

    problem = "unknown-job"

    exit_code = Exit.INTERRUPTED


class Action(StrEnum):
    """What to do with a job when its watcher is interrupted."""

    DETACH = "detach"
    CANCEL = "cancel"
    KEEP = "keep"


class Interrupts:
    """Counts SIGINT, SIGTERM and SIGHUP instead of dying of them, while it is entered and `holding`.

    Signals that the caller has this process ignore (`nohup`, a shell's `&`) stay ignored. While it is not holding, the
    others raise KeyboardInterrupt, so that a start can be aborted. `ordered` is set once the system, not a person,
    asks for the end, so that nobody is there to be asked.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.presses = 0
        self.ordered = False
        self.holding = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        handled = [number for number in self.SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._on_signal) for number in handled}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Count signals within the block."""
        before, self.holding = self.holding, True
        try:
            yield
        finally:
            self.holding = before

    @contextmanager
    def let_raise(self) -> Iterator[None]:
        """Let signals raise KeyboardInterrupt within the block."""
        before, self.holding = self.holding, False
        try:
            yield
        finally:
            self.holding = before

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.presses += 1
        self.ordered = self.ordered or number != signal.SIGINT
        if not self.holding:
            raise KeyboardInterrupt


class JobWatcher:
    """Polls the ledger for one job from a thread, until the job has ended or the watching is stopped."""

    def __init__(
        self, ledger: LedgerClient, registry: Registry, job_id: str, why: Callable[[JobStatus], str | None]
    ) -> None:
        """`why` returns what a job that makes no progress waits for; it is called in the thread, and may raise redis
        errors."""
        self._ledger, self._registry, self._job, self._why = ledger, registry, job_id, why
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lookout for {job_id}", daemon=True)
        self._last: JobSnapshot | None = None
        self._answered_s = time.monotonic()
        self._trouble: Exception | None = None
        self._failure: Exception | None = None

    def __enter__(self) -> JobWatcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Not joined: a thread that waits for a silent store must not keep anybody here.
        self._stop.set()

    def snapshot(self) -> JobSnapshot | None:
        """Return the latest state, None before the first answer. Raises the error that ended the polling."""
        if self._failure is not None:
            raise self._failure
        last, away_s = self._last, time.monotonic() - self._answered_s
        if last is not None and (last.status.state.ended or away_s < AWAY_AFTER_S):
            return last
        if away_s > STORE_AWAY_MAX_S:
            raise StoreAway(f"the store has not answered for {STORE_AWAY_MAX_S:.0f} s: {self._trouble}")
        return replace(last, away_s=away_s) if last is not None else None

    def _run(self) -> None:
        try:
            self._poll()
        except Exception as error:  # noqa: BLE001  (raised again by `snapshot`, in the caller's thread)
            self._failure = error

    def _poll(self) -> None:
        workers, counted_s = 1, -WORKERS_EVERY_S
        moved_s, waits_for = time.monotonic(), None
        last_standing: tuple[JobState, int] | None = None
        while not self._stop.is_set():
            try:
                now_s = time.monotonic()
                if now_s - counted_s > WORKERS_EVERY_S:
                    workers, counted_s = len(self._registry.alive()), now_s
                calls = self._ledger.open_calls()
                status = self._ledger.status(self._job)
                # Units that end in an error are no progress: their reason is what should be shown.
                if last_standing != (standing := (status.state, status.counters.get("scored", 0))):
                    moved_s, last_standing, waits_for = now_s, standing, None
                elif now_s - moved_s > STILL_S and now_s == counted_s:
                    waits_for = self._why(status)
                open_here, open_all = calls.get(f"j:{self._job}", 0), calls.get("all", 0)
                self._last = JobSnapshot(status, open_here, open_all, workers, waits_for=status.waits_for or waits_for)
                self._answered_s = time.monotonic()
                if status.state.ended:
                    return
            except UnknownJob:
                raise JobVanished(f"the ledger holds no job {self._job!r} any more: was the store emptied?") from None
            except (RedisError, OSError) as error:
                self._trouble = error
            self._stop.wait(LOOK_EVERY_S)


def follow(
    watcher: JobWatcher,
    interrupts: Interrupts,
    *,
    show: Callable[[JobSnapshot], None],
    ask: Callable[[], Action],
    cancel: Callable[[], bool],
    alone: Callable[[], bool] = lambda: False,
) -> JobStatus | None:
    """Watch a job until it has ended. Return its last status, or None if its watcher leaves before.

    For each interrupt, `ask` decides. Once `cancel` has reached the store, the job is still followed to its end, and
    one more interrupt leaves it; where nobody can give one (`alone`), it is left after `HURRY_S`. Raises `StoreAway`
    and `JobVanished`.
    """
    heeded, cancelling, shown_s, since_s = interrupts.presses, False, float("-inf"), 0.0
    while True:
        snapshot = watcher.snapshot()
        if snapshot is not None and snapshot.status.state.ended:
            show(snapshot)
            return snapshot.status
        if interrupts.presses > heeded:
            action = Action.DETACH if cancelling else ask()
            heeded = interrupts.presses
            if action is Action.DETACH:
                return None
            cancelling, since_s = action is Action.CANCEL and cancel(), time.monotonic()
            if action is Action.CANCEL and not cancelling and alone():
                return None
        if cancelling and alone() and time.monotonic() - since_s > HURRY_S:
            return None
        if snapshot is not None and time.monotonic() - shown_s >= LOOK_EVERY_S:
            show(snapshot)
            shown_s = time.monotonic()
        time.sleep(TICK_S)
