"""Event loops that a scheduler turns by hand: one for each node, so that a node can stop for a while, or for good."""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections.abc import Callable
from typing import Any

CROWDED = 100
"""Timers, from which on asyncio sorts out those that were cancelled."""


class _NoSelector(selectors.SelectSelector):
    """Nothing ever comes from outside: all that happens is in the world."""

    def select(self, timeout: float | None = None) -> list[Any]:
        return []


class NodeLoop(asyncio.SelectorEventLoop):
    """One node's loop. `turn` runs what is ready; between turns the world may do as it likes with it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        super().__init__(_NoSelector())
        self._clock_resolution = 1e-6
        self.ready = self._ready  # type: ignore[attr-defined]
        """What it would run now."""

    def time(self) -> float:
        return self._clock()

    @property
    def next_timer(self) -> float | None:
        timers = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
        return timers[0]._when if timers else None

    def turn(self) -> None:
        """As asyncio's own turn, which looks for what comes from outside; it also tidies up a crowded heap of timers,
        and does so here."""
        asyncio._set_running_loop(self)
        try:
            if len(self._scheduled) > CROWDED:  # type: ignore[attr-defined]
                self._run_once()  # type: ignore[attr-defined]
            else:
                self._run_ready()
        finally:
            asyncio._set_running_loop(None)

    def _run_ready(self) -> None:
        ready, due = self.ready, self._clock() + self._clock_resolution
        while (upcoming := self.next_timer) is not None and upcoming < due:
            timer = heapq.heappop(self._scheduled)  # type: ignore[attr-defined]
            timer._scheduled = False
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Threads are run at once and in one piece."""
        future: asyncio.Future[Any] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future
