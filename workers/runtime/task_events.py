"""Events of tasks that tell from which queue a message came, as monitors show it.

    app = Celery(..., events="dicast.workers.runtime.task_events:Events")

Celery tells that only with an event of whoever sends, one more message for each task. The request tells its worker's
dispatcher of itself when it is made (`Dispatcher.comes`), just before Celery tells that it was received.

No event that can be kept waits for a broker that is away. Celery's heartbeat would, on the main thread and for ever: a
worker that is to stop then could not. It is kept, and sent over the next connection.
"""

from __future__ import annotations

from typing import Any

import celery.app.events
from celery.events.dispatcher import EventDispatcher


class Events(celery.app.events.Events):  # type: ignore[misc]
    """Celery's `app.events`."""

    dispatcher_cls = "dicast.workers.runtime.task_events:Dispatcher"


class Dispatcher(EventDispatcher):  # type: ignore[misc]
    """Celery's, with the place that a task came from, waiting only where it cannot keep them."""

    _coming: tuple[str, dict[str, Any]] = ("", {})

    def comes(self, request: Any) -> None:
        """The next task that is told to be received is this one, if it is told at all."""
        place = request.delivery_info
        self._coming = request.id, {"exchange": place["exchange"], "routing_key": place["routing_key"]}

    def send(self, type: str, *args: Any, **fields: Any) -> Any:
        task_id, place = self._coming
        if type == "task-received" and fields.get("uuid") == task_id:
            fields |= place
        if self.buffer_while_offline:
            fields["retry"] = False
        return super().send(type, *args, **fields)
