"""Celery's consumer as far as it is about what comes: nothing that anybody can write into a queue ends a worker.

What cannot be handled is set aside among the dead letters, with a reason, and is never loaded.
"""

from __future__ import annotations

import logging
from typing import Any

from amqp.exceptions import AMQPError
from celery.worker.state import task_ready

from dicast.workers.broker.dead_letters import DeadLetters
from dicast.workers.broker.objections import objection, raw
from dicast.workers.runtime.pool_queues import PoolQueues
from dicast.workers.runtime.watchdog import Watchdog
from dicast.workers.store.errors import is_passing

logger = logging.getLogger(__name__)


class CheckedMessages(PoolQueues):
    """All on the hub's thread. `_watchdog` hears of every message, `_dead_letters` keeps what is set aside."""

    connection_errors: tuple[type[Exception], ...]
    _dead_letters: DeadLetters
    _watchdog: Watchdog

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Any:
        """Celery's, with each message counted, as taking them is the proof of life, and looked at: one that is not
        signed though it must be, or that something is wrong with, is set aside. `queue` is the gated one, if it is one.
        """
        handle = super().create_task_handler(*args, **kwargs)

        def handled(message: Any, queue: str | None = None) -> Any:
            try:
                self._watchdog.taken[queue or message.delivery_info["routing_key"]] += 1
                reason = self._objection(message, queue)
                return self._set_aside(message, reason) if reason else handle(message)
            except Exception as error:  # of this message; Celery would get it again, or end, for all the others
                if is_passing(error) or isinstance(error, OSError | AMQPError):
                    raise
                logger.exception("no request can be made of a message")
                return self._set_aside(message, "malformed")

        return handled

    def _objection(self, message: Any, queue: str | None) -> str:
        return objection(self.app, message, queue, self.task_consumer._queues)

    def on_unknown_message(self, body: Any, message: Any) -> None:
        self._set_aside(message, "no task message")

    def on_unknown_task(self, body: Any, message: Any, exc: Any) -> None:
        self._set_aside(message, "unknown task")

    def on_invalid_task(self, body: Any, message: Any, exc: Any) -> None:
        self._set_aside(message, "invalid task")

    def on_decode_error(self, message: Any, exc: Any) -> None:
        self._set_aside(message, "undecodable")

    def _set_aside(self, message: Any, reason: str) -> None:
        self._dead_letters.add(str((message.delivery_info or {}).get("routing_key")), reason, raw(message.body))
        if not message.acknowledged:
            message.reject_log_error(logger, self.connection_errors)

    def _end_request(self, request: Any, reason: str) -> None:
        """Set aside what Celery has made a request of: it is forgotten, its lease goes back, nothing is recorded."""
        task_ready(request)
        self._dead_letters.add(str(request.delivery_info["routing_key"]), reason, raw(request.body))
        request.reject(requeue=False)

    def _give_up_on(self, request: Any) -> None:
        """For the execution pool: its outcome can be recorded no more than it could be the times before."""
        self._end_request(request, "not recorded")
