"""Follow a job to its end: the ledger is asked several times a second, and its state alone decides.

A thread of its own asks, so that a store that does not answer never keeps the person waiting at the keyboard.
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

from dicast.app.cli.progress import Sight
from dicast.app.ledger.client import JobStatus, LedgerClient, UnknownJob
from dicast.app.ledger.states import JobState
from dicast.errors import DicastError, Exit
from dicast.workers.nodes.registry import Registry

LOOK_EVERY_S = 0.25
WORKERS_EVERY_S = 2.0
TICK_S = 0.05
STILL_S = 3.0
"""A job that does not move for so long is asked for the reason."""
HURRY_S = 10.0
"""How long a cancelled job may take to end where nobody is there to lose patience."""
AWAY_AFTER_S = 2.0
STORE_AWAY_MAX_S = 600.0
"""A store that is silent for longer ends the watching; the job goes on when the store is back."""


class StoreAway(DicastError, RuntimeError):
    """The store has been silent for too long. The job is not lost by that."""

    problem = "store-away"

    exit_code = Exit.INTERRUPTED


class JobVanished(DicastError, LookupError):
    """The ledger held the job and does not any more: the store lost its data, or the job's retention is over."""

    problem = "unknown-job"

    exit_code = Exit.INTERRUPTED


class Action(StrEnum):
    """What to do with a job whose watcher was interrupted."""

    DETACH = "detach"
    CANCEL = "cancel"
    KEEP = "keep"


class Interrupts:
    """Counts SIGINT, SIGTERM and SIGHUP instead of dying of them, while it is entered and `holding`.

    What the caller has this process ignore (`nohup`, a shell's `&`) stays ignored. While it is not holding, the others
    raise KeyboardInterrupt, so that a start can be given up. `ordered` tells that the system wants an end, and that
    nobody is there to be asked.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.presses = 0
        self.ordered = False
        self.holding = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        heard = [number for number in self.SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._on_signal) for number in heard}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Count them within."""
        before, self.holding = self.holding, True
        try:
            yield
        finally:
            self.holding = before

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Let them raise KeyboardInterrupt within."""
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


class Lookout:
    """Asks the ledger about one job from a thread, until it has ended or is stopped."""

    def __init__(
        self, ledger: LedgerClient, registry: Registry, job_id: str, why: Callable[[JobStatus], str | None]
    ) -> None:
        """`why` tells what keeps a job that stands still; it is asked in the thread, and may raise redis errors."""
        self._ledger, self._registry, self._job, self._why = ledger, registry, job_id, why
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lookout for {job_id}", daemon=True)
        self._last: Sight | None = None
        self._answered_s = time.monotonic()
        self._trouble: Exception | None = None
        self._failure: Exception | None = None

    def __enter__(self) -> Lookout:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Not joined: a thread that waits for a silent store must not keep anybody here.
        self._stop.set()

    def sight(self) -> Sight | None:
        """What was seen last, None before the first answer; raises what ended the looking."""
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
            self._look()
        except Exception as error:  # noqa: BLE001  (raised again by `sight`, in the thread that can tell of it)
            self._failure = error

    def _look(self) -> None:
        workers, counted_s = 1, -WORKERS_EVERY_S
        moved_s, waits_for = time.monotonic(), None
        seen: tuple[JobState, int] | None = None
        while not self._stop.is_set():
            try:
                now_s = time.monotonic()
                if now_s - counted_s > WORKERS_EVERY_S:
                    workers, counted_s = len(self._registry.alive()), now_s
                calls = self._ledger.open_calls()
                status = self._ledger.status(self._job)
                # Units that end in an error are no progress: why they do is what there is to tell.
                if seen != (standing := (status.state, status.counters.get("scored", 0))):
                    moved_s, seen, waits_for = now_s, standing, None
                elif now_s - moved_s > STILL_S and now_s == counted_s:
                    waits_for = self._why(status)
                open_here, open_all = calls.get(f"j:{self._job}", 0), calls.get("all", 0)
                self._last = Sight(status, open_here, open_all, workers, waits_for=status.waits_for or waits_for)
                self._answered_s = time.monotonic()
                if status.state.ended:
                    return
            except UnknownJob:
                raise JobVanished(f"the ledger holds no job {self._job!r} any more: was the store emptied?") from None
            except (RedisError, OSError) as error:
                self._trouble = error
            self._stop.wait(LOOK_EVERY_S)


def follow(
    lookout: Lookout,
    interrupts: Interrupts,
    *,
    show: Callable[[Sight], None],
    ask: Callable[[], Action],
    cancel: Callable[[], bool],
    alone: Callable[[], bool] = lambda: False,
) -> JobStatus | None:
    """Watch a job until it has ended; returns its last status, or None if its watcher wants to go before.

    Each interrupt is put to `ask`. Once `cancel` has reached the store, the job is still followed to its end, and one
    more interrupt leaves it to itself; so do `HURRY_S` where nobody can give one (`alone`). Raises `StoreAway` and
    `JobVanished`.
    """
    heeded, cancelling, shown_s, since_s = interrupts.presses, False, float("-inf"), 0.0
    while True:
        sight = lookout.sight()
        if sight is not None and sight.status.state.ended:
            show(sight)
            return sight.status
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
        if sight is not None and time.monotonic() - shown_s >= LOOK_EVERY_S:
            show(sight)
            shown_s = time.monotonic()
        time.sleep(TICK_S)
