"""Imported by workers under test (`celery -A app worker -I lab.chaos.hooks`): places to die at, and shorter clocks.

Nothing of this is in the product: a worker without this import has neither.

CHAOS_ARM      a file that, while it exists, holds "point n": the first process that comes to that point for the n-th
               time from then on takes the file away and kills itself
CHAOS_FULL     a file: while it exists, there is no room left on the disk for results and answers
CHAOS_CLOCKS   a factor for the intervals after which silence counts as loss (beacon, owners of messages, still pages,
               unattended jobs)
CHAOS_TICKS    seconds without a tick of the beat after which a worker does its work
CHAOS_BATCHES  a factor for the pauses after which batches are formed, looked at and tried again
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import dicast.app.ledger.ledger
import dicast.app.pipeline.batches
import dicast.app.pipeline.judge
import dicast.app.pipeline.messages
import dicast.app.pipeline.outcomes
import dicast.app.pipeline.record
import dicast.app.reports.files
import dicast.app.reports.folders
from dicast.app.application import app

POINTS = {
    "after-acquire": (dicast.app.pipeline.judge.Judge, "_claim", "before"),
    "after-claim": (dicast.app.ledger.ledger.Ledger, "claim", "after"),
    "after-answer": (dicast.app.pipeline.outcomes.Outcomes, "_answered", "before"),
    "after-store": (dicast.app.ledger.ledger.Ledger, "record", "after"),
    "before-complete": (dicast.app.ledger.ledger.Ledger, "complete", "before"),
    "after-complete": (dicast.app.ledger.ledger.Ledger, "complete", "after"),
    "before-close-page": (dicast.app.ledger.ledger.Ledger, "close_page", "before"),
    "after-close-page": (dicast.app.ledger.ledger.Ledger, "close_page", "after"),
    "after-open-page": (dicast.app.ledger.ledger.Ledger, "open_page", "after"),
    "after-publish": (dicast.app.pipeline.messages.Messages, "page", "after"),
    "after-start": (dicast.app.ledger.ledger.Ledger, "start", "after"),
    "after-take-due": (dicast.app.ledger.ledger.Ledger, "take_due", "after"),
}
"""Name -> the coroutine function beside which the process dies. `take_due` counts only when something was due."""
LONG_CLOCKS = ("page_still_ms", "unclaimed_ms", "unattended_ms", "try_every_ms", "pool_gone_ms")
BEACON_LEAST_S = 8.0
"""Shorter, and a starved worker of a busy machine would be taken for a silent one."""

_passed: Counter[str] = Counter()


def _passing(point: str, arm: Path) -> None:
    try:
        wanted, _, count = arm.read_text().partition(" ")
    except FileNotFoundError:
        _passed.clear()
        return
    if wanted == point:
        _passed[point] += 1
        if _passed[point] >= int(count):
            with contextlib.suppress(FileNotFoundError):  # another one was first
                arm.rename(arm.with_suffix(".struck"))
                os.kill(os.getpid(), signal.SIGKILL)


def _lay(point: str, arm: Path) -> None:
    owner, name, when = POINTS[point]
    original = getattr(owner, name)

    @functools.wraps(original)
    async def passing(*args: Any, **kwargs: Any) -> Any:
        if when == "before":
            _passing(point, arm)
        answer = await original(*args, **kwargs)
        if when == "after" and (answer or name != "take_due"):
            _passing(point, arm)
        return answer

    setattr(owner, name, passing)


if "CHAOS_ARM" in os.environ:
    for point in POINTS:
        _lay(point, Path(os.environ["CHAOS_ARM"]))


def _fill(full: Path) -> None:
    """Have every file that must appear whole be refused while the disk is said to be full."""
    original = dicast.app.reports.folders.replacing

    @contextlib.contextmanager
    def replacing(path: Path, **options: Any) -> Iterator[IO[bytes]]:
        if full.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        with original(path, **options) as file:
            yield file

    for module in (dicast.app.reports.folders, dicast.app.reports.files, dicast.app.pipeline.record):
        module.replacing = replacing


def _hurry_batches(factor: float) -> None:
    batches, least_ms, most_ms = dicast.app.pipeline.batches, *app.intervals.batch_poll_ms
    poll_ms = (int(least_ms * factor), int(most_ms * factor))
    forms_ms = int(app.intervals.batch_forms_ms * factor)
    app.intervals = replace(app.intervals, batch_forms_ms=forms_ms, batch_poll_ms=poll_ms)
    batches.AGAIN_MS = int(batches.AGAIN_MS * factor)
    batches.LOOK_EVERY_S *= factor
    batches.IDLE_LOOK_S *= factor


if "CHAOS_FULL" in os.environ:
    _fill(Path(os.environ["CHAOS_FULL"]))
if {"CHAOS_CLOCKS", "CHAOS_TICKS", "CHAOS_BATCHES"} & os.environ.keys():
    assert not {"registry", "ledger"} & vars(app).keys(), "they are made of these"
if "CHAOS_CLOCKS" in os.environ:
    factor = float(os.environ["CHAOS_CLOCKS"])
    shorter = {clock: int(getattr(app.intervals, clock) * factor) for clock in LONG_CLOCKS}
    app.intervals = replace(app.intervals, **shorter)
    beacon_s = max(BEACON_LEAST_S, app.node_intervals.beacon_s * factor)
    app.node_intervals = replace(app.node_intervals, beacon_s=beacon_s)
    app.intervals = replace(app.intervals, owner_silent_ms=int(1000 * (beacon_s + 1)))
if "CHAOS_TICKS" in os.environ:
    app.intervals = replace(app.intervals, beat_silent_ms=int(1000 * float(os.environ["CHAOS_TICKS"])))
if "CHAOS_BATCHES" in os.environ:
    _hurry_batches(float(os.environ["CHAOS_BATCHES"]))
