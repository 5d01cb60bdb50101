"""Event loops that a scheduler turns by hand: one for each node, so that a node can stop for a while, or for good."""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections.abc import Callable
from typing import Any


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

    def time(self) -> float:
        return self._clock()

    @property
    def ready(self) -> bool:
        return bool(self._ready)  # type: ignore[attr-defined]

    @property
    def next_timer(self) -> float | None:
        timers = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
        return timers[0]._when if timers else None

    def turn(self) -> None:
        asyncio._set_running_loop(self)
        try:
            self._run_once()  # type: ignore[attr-defined]
        finally:
            asyncio._set_running_loop(None)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Threads are run at once and in one piece."""
        future: asyncio.Future[Any] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future
