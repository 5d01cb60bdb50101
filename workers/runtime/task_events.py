"""Task events that name the queue that a message came from, for monitors.

    app = Celery(..., events="dicast.workers.runtime.task_events:Events")

Celery reports that only in an event of the sender, one more message for each task. Here the request announces itself to
its worker's dispatcher when it is made (`Dispatcher.comes`), just before Celery reports that it was received.

No event that can be buffered waits for a broker that is unreachable. Celery's heartbeat would, on the main thread and
for ever, so that the worker could not stop. It is buffered, and sent over the next connection.
"""

from __future__ import annotations

from typing import Any

import celery.app.events
from celery.events.dispatcher import EventDispatcher


class Events(celery.app.events.Events):  # type: ignore[misc]
    """Celery's `app.events`."""

    dispatcher_cls = "dicast.workers.runtime.task_events:Dispatcher"


class Dispatcher(EventDispatcher):  # type: ignore[misc]
    """Celery's dispatcher, which adds the place that a task came from, and waits only if it cannot buffer events."""

    _coming: tuple[str, dict[str, Any]] = ("", {})

    def comes(self, request: Any) -> None:
        """Note that the next `task-received` event, if there is one, is for this request."""
        place = request.delivery_info
        self._coming = request.id, {"exchange": place["exchange"], "routing_key": place["routing_key"]}

    def send(self, type: str, *args: Any, **fields: Any) -> Any:
        task_id, place = self._coming
        if type == "task-received" and fields.get("uuid") == task_id:
            fields |= place
        if self.buffer_while_offline:
            fields["retry"] = False
        return super().send(type, *args, **fields)
