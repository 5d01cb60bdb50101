"""Displays of progress: a block that is redrawn on a terminal, a line now and then elsewhere, or nothing."""

from __future__ import annotations

import time
from typing import Protocol

from rich.live import Live

from dicast.app.cli.console import Terminal
from dicast.app.cli.progress import JobProgress, JobSnapshot

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
