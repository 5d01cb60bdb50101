"""Watches a worker for progress: if it takes no work that waits it is connected anew, and if that is no help ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping

from celery.platforms import EX_FAILURE
from celery.worker import state as worker_state

from workers.depths import BROKER_ERRORS, Depths
from workers.policy.progress import LOOK_EVERY_S, Progress, Remedy, look

logger = logging.getLogger(__name__)


class Watchdog:
    """`room` tells of every queue that is consumed now whether there is room for a message of it; `taken` counts those
    that came; `reconnect` has Celery connect anew."""

    def __init__(self, room: Callable[[], Mapping[str, bool]], reconnect: Callable[[], None]) -> None:
        self.taken: Counter[str] = Counter()
        self._room, self._reconnect = room, reconnect
        self._progress: dict[str, Progress] = {}

    @property
    def stuck(self) -> str:
        """Queues with work that this worker should take and does not, '' if all is well."""
        return ", ".join(sorted(name for name, progress in self._progress.items() if progress.stuck))

    async def run(self, depths: Depths) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            with contextlib.suppress(*BROKER_ERRORS):  # nobody takes anything while the broker is away
                await self.look(depths)

    async def look(self, depths: Depths) -> None:
        """One look at all queues."""
        for name, room in self._room().items():
            waiting = await depths.waiting(name) > 0
            before = self._progress.get(name, Progress())
            self._progress[name], remedy = look(before, taken=self.taken[name], waiting=waiting, room=room)
            if remedy is Remedy.NONE:
                continue
            logger.error("work waits in %s and none is taken: %s", name, remedy.value,
                         extra={"event": "no_progress", "queue": name, "remedy": remedy.value})  # fmt: skip
            if remedy is Remedy.RECONNECT:
                self._reconnect()
            else:
                worker_state.should_stop = EX_FAILURE
