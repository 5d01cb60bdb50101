"""Watches a worker's progress. If it does not take work that waits, it is reconnected; if that does not help, it
ends."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping

from dicast.workers.broker.queue_length import BROKER_ERRORS, QueueLengths
from dicast.workers.policy.progress import CHECK_EVERY_S, QueueProgress, Remedy, check_progress
from dicast.workers.system.supervision import end_worker

logger = logging.getLogger(__name__)


class Watchdog:
    """Watches one worker. `room` returns for every queue that is consumed whether there is room for a message of it;
    `taken` counts the messages that arrived; `reconnect` has Celery connect anew."""

    def __init__(self, room: Callable[[], Mapping[str, bool]], reconnect: Callable[[], None]) -> None:
        self.taken: Counter[str] = Counter()
        self._room, self._reconnect = room, reconnect
        self._progress: dict[str, QueueProgress] = {}
        self.stuck = ""
        """Queues whose work this worker should take and does not, '' if all is well; for any thread."""

    async def run(self, queue_lengths: QueueLengths) -> None:
        """Check the queues every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            await self.check(queue_lengths)

    async def check(self, queue_lengths: QueueLengths) -> None:
        """Check all queues once."""
        for name, room in self._room().items():
            try:
                waiting = await queue_lengths.waiting(name) > 0
            except BROKER_ERRORS:  # nobody takes anything while the broker is away
                continue
            before = self._progress.get(name, QueueProgress())
            self._progress[name], remedy = check_progress(before, taken=self.taken[name], waiting=waiting, room=room)
            if remedy is Remedy.NONE:
                continue
            logger.error("work waits in %s and none is taken: %s", name, remedy.value,
                         extra={"event": "no_progress", "queue": name, "remedy": remedy.value})  # fmt: skip
            if remedy is Remedy.RECONNECT:
                self._reconnect()
            else:
                end_worker(f"work waits in {name} and none is taken")
        self.stuck = ", ".join(sorted(name for name, progress in self._progress.items() if progress.stuck))
