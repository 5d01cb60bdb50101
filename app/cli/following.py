"""Follows a job to its end. The ledger is polled several times a second, and its state alone decides.

A separate thread polls, so that a store that does not answer never blocks the person at the keyboard. Progress (units,
rate, open calls, and what the job waits for) is shown as a block that is redrawn on a terminal, as a line now and then
elsewhere, or not at all.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from types import FrameType
from typing import Any, Protocol

from redis.exceptions import RedisError
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dicast.app.cli.console import Terminal
from dicast.app.domain.text import counted, printable
from dicast.app.ledger.client import JobStatus, LedgerClient, UnknownJob
from dicast.app.ledger.records import JobState
from dicast.errors import DicastError, Exit
from dicast.workers.nodes.registry import Registry

RATE_WINDOW_S = 10.0
RATE_UNITS = 20
TROUBLES = (
    ("retries", "retry", "retries"),
    ("requeues", "requeue", "requeues"),
    ("timeouts", "timeout", "timeouts"),
    ("failed", "failed", "failed"),
    ("spared", "spared", "spared"),
)
NOTICE_CHARS = 400
_GAP = "   "


class Rate:
    """The recent rate in units per second: over the last `RATE_WINDOW_S` or the last `RATE_UNITS` units, whichever is
    longer.

    So a slow job has a rate, too, and one that stands still is seen to slow down. Times are seconds of any clock.
    """

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def add(self, now_s: float, done: int) -> None:
        points = self._points
        if not points or done > points[-1][1]:
            points.append((now_s, done))
        while len(points) > 2 and now_s - points[1][0] >= RATE_WINDOW_S and done - points[1][1] >= RATE_UNITS:
            points.popleft()

    def per_s(self, now_s: float) -> float | None:
        """Return the rate, None as long as nothing was done since the first call of `add`."""
        if len(self._points) < 2:
            return None
        since_s, before = self._points[0]
        return (self._points[-1][1] - before) / max(now_s - since_s, 1e-3)


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """The state of a job at one time. `open_here` counts the open calls of this job, `open_all` those of all jobs;
    `workers` counts living workers.

    `away_s` is how long the store has not answered; the other fields are then those of its last answer. `waits_for` is
    the reason why the job makes no progress.
    """

    status: JobStatus
    open_here: int
    open_all: int
    workers: int
    away_s: float = 0.0
    waits_for: str | None = None


class JobProgress:
    """The progress of a job, which `update` changes and rich prints."""

    def __init__(self, started_s: float) -> None:
        self._started_s = self._now_s = started_s
        self._rate = Rate()
        self._sight: JobSnapshot | None = None

    def update(self, sight: JobSnapshot, now_s: float) -> None:
        self._sight, self._now_s = sight, now_s
        if not sight.away_s:
            self._rate.add(now_s, sight.status.done)

    @property
    def left_s(self) -> float | None:
        """Seconds to the end at the recent rate, None if unknown."""
        sight = self._sight
        if sight is None or sight.away_s or not sight.workers or sight.status.state is not JobState.RUNNING:
            return None
        rate = self._rate.per_s(self._now_s)
        return (sight.status.units - sight.status.done) / rate if rate else None

    def facts(self) -> list[str]:
        """Return short phrases, the most important first."""
        assert self._sight is not None
        status, counters = self._sight.status, self._sight.status.counters
        others = self._sight.open_all - self._sight.open_here
        facts = [elapsed(self._now_s - self._started_s)]
        if self.left_s is not None:
            facts[0] += f", about {elapsed(self.left_s)} left"
        running = status.state is JobState.RUNNING
        if running and (rate := self._rate.per_s(self._now_s)) is not None:
            facts.append(pace(rate))
        limit = f" of {status.limit:,}" if status.limit else ""
        facts.append(
            f"{self._sight.open_here:,}{limit} calls open" + (f" (+{others:,} of other jobs)" if others else "")
        )
        if status.money:
            facts.append(status.money)
        if running:  # the units that a cancelled job closes count as done and as failed
            facts += [
                counted(counters[name], singular, many) for name, singular, many in TROUBLES if counters.get(name)
            ]
        return facts

    def notice(self) -> str | None:
        """Return what the person should know now, and can perhaps change."""
        assert self._sight is not None
        sight, state = self._sight, self._sight.status.state
        if sight.away_s:
            return f"the store has not answered for {elapsed(sight.away_s)}; trying again"
        if not sight.workers:
            return "no worker is alive, so the job waits; start one: celery -A dicast worker"
        if sight.waits_for is not None:
            return f"waits: {printable(sight.waits_for, NOTICE_CHARS)}"
        if state is JobState.CANCELLING and sight.open_here:
            return f"no new calls; waiting for {counted(sight.open_here, 'open one', 'open ones')} to end"
        return None

    def line(self) -> str:
        """Return everything on one line, for logs."""
        assert self._sight is not None
        status = self._sight.status
        parts = [f"{status.state}: {status.done:,} of {status.units:,} units", *self.facts()]
        return ", ".join(parts) + (f"; {notice}" if (notice := self.notice()) else "")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._sight is None:
            return
        status, width = self._sight.status, options.max_width
        project = printable(status.project, 60, "...")
        if options.ascii_only:
            project = project.encode("ascii", "backslashreplace").decode()
        head = Text.assemble(("Job ", "bold"), (status.id, "bold"), "  project ", project, f"  {status.state}")
        head.truncate(width)
        yield head
        bar = Table.grid(expand=True, padding=(0, 2, 0, 0))
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True, overflow="crop")
        count = f"{status.done:,} of {status.units:,} units, {100 * status.done // status.units} %"
        bar.add_row(ProgressBar(total=status.units, completed=status.done), count)
        yield bar
        yield Text("\n".join(wrapped(self.facts(), width)))
        if (notice := self.notice()) is not None:
            yield Text(notice, style="yellow")


def wrapped(facts: list[str], width: int) -> list[str]:
    """Join the phrases into as few lines as they need, without breaking any of them."""
    lines = [facts[0]]
    for fact in facts[1:]:
        if len(lines[-1]) + len(_GAP) + len(fact) <= width:
            lines[-1] += _GAP + fact
        else:
            lines.append(fact)
    return lines


def pace(per_s: float) -> str:
    """Format a rate, in units per minute where seconds would only show zeros."""
    return f"{per_s:,.1f}/s" if per_s >= 1 else f"{60 * per_s:.1f}/min"


def elapsed(seconds: float) -> str:
    """Format a duration as 0:07, 12:05 or 3:07:09."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


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


LINE_EVERY_S = 10.0


class Display(Protocol):
    """Shows progress. `pause` makes room for a question, until the next `show`."""

    def show(self, sight: JobSnapshot) -> None: ...
    def pause(self) -> None: ...


class NoDisplay:
    def show(self, sight: JobSnapshot) -> None:
        """Show nothing."""

    def pause(self) -> None:
        """Do nothing: there is nothing to remove."""


class BlockDisplay:
    """Some lines at the bottom of a terminal, which are removed when it is paused."""

    def __init__(self, terminal: Terminal) -> None:
        self._console = terminal.err
        self._progress = JobProgress(time.monotonic())
        self._live: Live | None = None

    def show(self, sight: JobSnapshot) -> None:
        self._progress.update(sight, time.monotonic())
        if self._live is None:
            self._live = Live(self._progress, console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.refresh()

    def pause(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


class LineDisplay:
    """Prints a line when the state or a notice changes, and every `LINE_EVERY_S` while units are completed."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._progress = JobProgress(time.monotonic())
        self._last: tuple[object, ...] = ()
        self._said_s = float("-inf")

    def show(self, sight: JobSnapshot) -> None:
        now_s = time.monotonic()
        self._progress.update(sight, now_s)
        news = (sight.status.state, bool(sight.away_s), bool(sight.workers), sight.waits_for)
        moved = (*news, sight.status.done)
        if news != self._last[: len(news)] or (moved != self._last and now_s - self._said_s >= LINE_EVERY_S):
            self._last, self._said_s = moved, now_s
            self._terminal.say(self._progress.line())

    def pause(self) -> None:
        """Do nothing: lines stay."""


def display(terminal: Terminal, *, quiet: bool) -> Display:
    """Return the display that fits the terminal. With `quiet` there is none, except for a terminal's block, which
    leaves nothing behind."""
    if terminal.err.is_terminal and not terminal.err.is_dumb_terminal:
        return BlockDisplay(terminal)
    return NoDisplay() if quiet else LineDisplay(terminal)
