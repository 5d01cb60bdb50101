"""Draws the progress of a running job: its units, its rate, its open calls, and what it waits for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dicast.app.domain.printable import printable
from dicast.app.ledger.client import JobStatus
from dicast.app.ledger.states import JobState

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
        facts = [span(self._now_s - self._started_s)]
        if self.left_s is not None:
            facts[0] += f", about {span(self.left_s)} left"
        running = status.state is JobState.RUNNING
        if running and (rate := self._rate.per_s(self._now_s)) is not None:
            facts.append(pace(rate))
        limit = f" of {status.limit:,}" if status.limit else ""
        facts.append(
            f"{self._sight.open_here:,}{limit} calls open" + (f" (+{others:,} of other jobs)" if others else "")
        )
        if running:  # the units that a cancelled job closes count as done and as failed
            facts += [plural(counters[name], singular, many) for name, singular, many in TROUBLES if counters.get(name)]
        return facts

    def notice(self) -> str | None:
        """Return what the person should know now, and can perhaps change."""
        assert self._sight is not None
        sight, state = self._sight, self._sight.status.state
        if sight.away_s:
            return f"the store has not answered for {span(sight.away_s)}; trying again"
        if not sight.workers:
            return "no worker is alive, so the job waits; start one: celery -A dicast worker"
        if sight.waits_for is not None:
            return f"waits: {printable(sight.waits_for, NOTICE_CHARS)}"
        if state is JobState.CANCELLING and sight.open_here:
            return f"no new calls; waiting for {plural(sight.open_here, 'open one', 'open ones')} to end"
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


def plural(count: int, singular: str, many: str) -> str:
    return f"{count:,} {singular if count == 1 else many}"


def pace(per_s: float) -> str:
    """Format a rate, in units per minute where seconds would only show zeros."""
    return f"{per_s:,.1f}/s" if per_s >= 1 else f"{60 * per_s:.1f}/min"


def span(seconds: float) -> str:
    """Format a duration as 0:07, 12:05 or 3:07:09."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
