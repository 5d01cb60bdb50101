"""The part of the consumer that checks incoming messages: nothing that can be written into a queue ends a worker.

A message that cannot be handled is set aside among the dead letters, with a reason, and never loaded.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

from amqp.exceptions import AMQPError
from celery.app.task import Context
from celery.exceptions import NotRegistered
from celery.worker.state import task_ready

from dicast.workers.broker.dead_letters import DeadLetters
from dicast.workers.broker.objections import objection, raw
from dicast.workers.runtime.pool_queues import PoolQueues
from dicast.workers.runtime.watchdog import Watchdog
from dicast.workers.store.errors import is_passing
from dicast.workers.system.supervision import watch

logger = logging.getLogger(__name__)


UNKNOWN_TRIES = 5
UNKNOWN_PAUSE_S = 1.0
"""How often a worker hands back a task that it does not know, and how long it waits each time."""
UNKNOWN_HELD_MAX = 8
"""The most such messages that wait here at once, since they take up the room of control work."""
UNKNOWN_KEPT = 1000
NAME_SHOWN = 200


def shortened(name: str) -> str:
    """Shorten an untrusted name for a line of the log."""
    return name if len(name) <= NAME_SHOWN else f"{name[:NAME_SHOWN]}..."


def _context(message: Any) -> Context | None:
    """Return what Celery needs to mark a task as failed; None if the message cannot be read."""
    try:
        _, _, embedded = message.payload
        return Context(message.headers, **{key: embedded.get(key) for key in ("chain", "chord", "errbacks")})
    except Exception:  # noqa: BLE001  (whatever is wrong with a stranger's message)
        return None


class CheckedMessages(PoolQueues):
    """Checks every message, on the hub's thread. `_watchdog` counts them, `_dead_letters` keeps those set aside."""

    _unknown: dict[str, int]
    _unknown_held: int
    connection_errors: tuple[type[Exception], ...]
    _dead_letters: DeadLetters
    _watchdog: Watchdog

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Any:
        """Return Celery's handler, with a count and a check before it.

        Messages are counted for the watchdog. One that is unsigned although it must be signed, or is faulty, is set
        aside. `queue` is the gated queue that a message comes from, None for the others.
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
        """Put a task that this worker does not know back into its queue a few times, so that a worker that knows it may
        take it. Then fail it, and whatever waits for it, with Celery's `NotRegistered`."""
        task_id, name = (shortened(str(message.headers.get(field))) for field in ("id", "task"))
        fields = {"event": "unknown_task", "task": name, "task_id": task_id}
        tries = self._unknown.get(task_id, 0) + 1
        in_common = message.delivery_info["routing_key"] in self._common
        if in_common and tries <= UNKNOWN_TRIES and self._unknown_held < UNKNOWN_HELD_MAX:
            if len(self._unknown) >= UNKNOWN_KEPT:
                self._unknown.clear()
            self._unknown[task_id] = tries
            self._unknown_held += 1
            if tries == 1:
                logger.warning("task %s is not known here: it is left to a worker that has it", name, extra=fields)
            self.timer.call_after(UNKNOWN_PAUSE_S, self._hand_back, (message,))
            return
        self._unknown.pop(task_id, None)
        why = "is not known to this worker, and no other has taken it: it fails"
        logger.error("task %s %s; workers that are to run it need -I and its module", name, why, extra=fields)
        context = _context(message)
        self._set_aside(message, "unknown task")
        if context is not None:
            failing = asyncio.to_thread(self._fail_unknown, context, NotRegistered(name))
            watch(self.pool.submit(failing), f"the end of task {task_id}")

    def _hand_back(self, message: Any) -> None:
        self._unknown_held -= 1
        if not message.acknowledged:
            message.reject_log_error(logger, self.connection_errors, requeue=True)

    def _fail_unknown(self, context: Context, error: NotRegistered) -> None:
        """Record the failure, so that whoever waits for the task, or for its chain or chord, gets the error. Blocks."""
        try:
            self.app.backend.mark_as_failure(context.id, error, request=context)
        except Exception as trouble:  # noqa: BLE001  (a stranger's message; the worker serves all the others)
            logger.warning("the failure of task %s could not be recorded: %r", shortened(str(context.id)), trouble)
        dispatcher = self.event_dispatcher
        if dispatcher is not None:
            self.pool.post(partial(dispatcher.send, "task-failed", uuid=context.id, exception=repr(error)))

    def on_invalid_task(self, body: Any, message: Any, exc: Any) -> None:
        self._set_aside(message, "invalid task")

    def on_decode_error(self, message: Any, exc: Any) -> None:
        self._set_aside(message, "undecodable")

    def _set_aside(self, message: Any, reason: str) -> None:
        self._dead_letters.add(str((message.delivery_info or {}).get("routing_key")), reason, raw(message.body))
        if not message.acknowledged:
            message.reject_log_error(logger, self.connection_errors)

    def _end_request(self, request: Any, reason: str) -> None:
        """Set aside a message that Celery has made a request of. Its lease goes back, and nothing is recorded."""
        task_ready(request)
        self._dead_letters.add(str(request.delivery_info["routing_key"]), reason, raw(request.body))
        request.reject(requeue=False)

    def _give_up_on(self, request: Any) -> None:
        """Set aside a message whose outcome could not be recorded again and again; the execution pool calls this."""
        self._end_request(request, "not recorded")
