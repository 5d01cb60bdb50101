"""Publishes messages from task greenlets, and events for monitors.

    app = Celery(..., amqp="dicast.workers.runtime.publishing:AMQP", events="dicast.workers.runtime.publishing:Events")

Retries, replacements, callbacks and chord bodies leave by helper threads. Celery publishes through blocking sockets and
sleeps between its attempts; on the loop, one broker that does not answer would stop every task of the process. A task
greenlet therefore holds no producer: a helper thread takes one for each message, so that greenlets that wait cannot
hold what others wait for. Elsewhere this is Celery's own class.

Publishing does not wait for ever for a broker that confirms nothing (RabbitMQ whose disk or memory is full): it raises
OSError.

With `app.message_key`, every task message is signed (workers/broker/dead_letters.py).

A retry without a countdown may run before the run that asked for it has stored that it retries, as it may among
several of Celery's own processes.

Task events name the queue that a message came from. Celery reports that only in an event of the sender, one more
message for each task. Here the request announces itself to its worker's dispatcher when it is made
(`Dispatcher.comes`), just before Celery reports that it was received. No event that can be buffered waits for a broker
that is unreachable. Celery's heartbeat would, on the main thread and for ever, so that the worker could not stop. It is
buffered, and sent over the next connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import celery.app.amqp
import celery.app.events
from celery.events.dispatcher import EventDispatcher
from kombu.serialization import dumps

from dicast.workers.broker.dead_letters import SIGNATURE, signature
from dicast.workers.runtime.loop_bridge import in_task_greenlet, off_loop

CONFIRM_TIMEOUT_S = 30.0


class AMQP(celery.app.amqp.AMQP):  # type: ignore[misc]
    """Celery's `app.amqp`."""

    @property
    def producer_pool(self) -> Any:
        pool = super().producer_pool
        return _DeferredPool(self.app, pool.connections) if in_task_greenlet() else pool

    def _create_task_sender(self) -> Callable[..., Any]:
        send = super()._create_task_sender()
        key: str | None = getattr(self.app, "message_key", None)

        def send_task_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
            options["confirm_timeout"] = options.get("confirm_timeout") or CONFIRM_TIMEOUT_S
            options.pop("argsrepr", None)  # Celery makes it a header, and leaves it to become a property, too
            if key:
                headers = {**message.headers, **(options.pop("headers", None) or {})}
                serializer = options.get("serializer") or self.app.conf.task_serializer
                *_, body = dumps(message.body, serializer)
                headers[SIGNATURE] = signature(key, headers, body)
                message = message._replace(headers=headers)
            if not isinstance(producer, _DeferredProducer):
                return send(producer, name, message, **options)
            return producer.lend(lambda real: send(real, name, message, **options))

        return send_task_message


class _DeferredPool:
    """Takes the place of kombu's pool of producers in task greenlets."""

    def __init__(self, app: Any, connections: Any) -> None:
        self.connections = connections
        self._app = app

    def acquire(self, block: bool = False, timeout: float | None = None) -> _DeferredProducer:
        return _DeferredProducer(self._app, self.connections.connection)


class _DeferredProducer:
    """Takes the place of kombu's producer. `connection` is never opened; Celery reads the transport's errors from
    it."""

    def __init__(self, app: Any, connection: Any) -> None:
        self.connection = connection
        self._app = app

    def lend(self, use: Callable[[Any], Any]) -> Any:
        """Call `use` with a real producer, in a helper thread."""

        def take_and_use() -> Any:
            with self._app.producer_or_acquire() as producer:
                return use(producer)

        return off_loop(take_and_use)

    def publish(self, *args: Any, **kwargs: Any) -> Any:
        return self.lend(lambda producer: producer.publish(*args, **kwargs))

    def release(self) -> None:
        """Do nothing: no producer is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Events(celery.app.events.Events):  # type: ignore[misc]
    """Celery's `app.events`."""

    dispatcher_cls = "dicast.workers.runtime.publishing:Dispatcher"


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
