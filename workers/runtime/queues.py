"""The queues that a worker reads: those of pools through their gates, others as Celery does.

Commands add and remove queues. All on the hub's thread, for one connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from celery.worker.consumer import Consumer
from celery.worker.state import task_ready
from kombu.transport.redis import Channel as RedisChannel

from dicast.workers.admission.gate import Gate
from dicast.workers.admission.request import QUEUE_PREFIX, AdmittedRequest
from dicast.workers.broker.acknowledgement import batch_acks
from dicast.workers.broker.dead_letters import DeadLetters
from dicast.workers.broker.fetch import InHand, Prefetch, Refuse, fetch_in_batches
from dicast.workers.broker.profiles import plain
from dicast.workers.runtime.pool import TaskPool
from dicast.workers.system.supervision import end_worker, watch

logger = logging.getLogger(__name__)


class GatedQueue:
    """One pool's queue. `consumer_of` makes kombu's consumer on a channel, and `read_on` handles what has arrived over
    the connection. For `refuse` and `in_hand` see `fetch_in_batches`.

    It is read over a channel of its own, only while its gate has room, so that the backlog stays in the broker and a
    throttled pool never holds up another. It is closed and reopened on the same channel.
    """

    def __init__(
        self, queue: Any, gate: Gate, connection: Any, hub: Any, *, consumer_of: Callable[[Any], Any],
        refuse: Refuse, in_hand: InHand, read_on: Callable[[], None],
    ) -> None:  # fmt: skip
        self.queue, self.gate = queue, gate
        self._hub = hub
        self._prefetch: Prefetch | None = None
        channel = connection.channel()
        self._in_store = isinstance(channel, RedisChannel)
        if self._in_store:
            batch_acks(channel)
            fetch_in_batches(channel, gate.room, refuse, in_hand, lambda: gate.closed)
        self._consumer = consumer_of(channel)
        self._new_prefetch = partial(Prefetch, self._consumer, gate.room_for_bunch, read_on)
        self._handle = self._consumer.on_message
        self.open()

    def open(self) -> None:
        """Start reading the queue."""
        self.gate.shut = False
        if self._in_store:
            self._consumer.consume()
            return
        self._consumer.on_message = self._handle
        self._prefetch = self._new_prefetch()
        self._hub.on_tick.add(self._prefetch.refill)

    def close(self) -> None:
        """Stop reading the queue. The caller has to put back messages that have been read and have no lease."""
        self.gate.shut = True
        self._forget_prefetch(lambda prefetch: prefetch.stop())
        if self._in_store:
            self._consumer.cancel()

    def ask_anew(self) -> None:
        """Withdraw the permission of a pushing broker to send more; it is given again once the gate has room."""
        if self._prefetch is not None:
            self._forget_prefetch(lambda prefetch: prefetch.stop())
            self.open()

    def stop(self) -> None:
        """Stop fetching, before the worker ends. kombu puts back what the store has delivered already."""
        if self._prefetch is not None:
            self._prefetch.stop()

    def abandon(self) -> None:
        """Forget the prefetch, because its connection is lost."""
        self._forget_prefetch(lambda prefetch: prefetch.abandon())

    def _forget_prefetch(self, end: Callable[[Prefetch], None]) -> None:
        prefetch, self._prefetch = self._prefetch, None
        if prefetch is not None:
            if self._hub is not None:
                self._hub.on_tick.discard(prefetch.refill)
            end(prefetch)


class PoolQueues(Consumer):  # type: ignore[misc]
    """The part of the consumer that manages queues. `_handle` handles a message; `_serving` says that the gates run."""

    pool: TaskPool
    initial_prefetch_count: int
    gates: dict[str, Gate]
    """The gates by queue; replaced as a whole, since other threads read it."""
    _common: tuple[str, ...]
    """The queues that are read without a gate; replaced as a whole, since other threads read it."""
    _queues: dict[str, GatedQueue]
    """The gated queues of this connection, including closed ones."""
    _in_hand: InHand
    _handle: Any
    _serving: bool
    _dead_letters: DeadLetters

    def forget_queues(self) -> None:
        """Start with no queues, before the first connection."""
        self.gates, self._common, self._queues, self._in_hand = {}, (), {}, []

    async def _serve_gate(self, gate: Gate) -> None:
        raise NotImplementedError

    def _read_on(self) -> None:
        raise NotImplementedError

    def _prefetch_count(self) -> int:
        """Return the prefetch count of queues without a gate: their work runs in all slots, whatever `-c` says."""
        return int(self.pool.slots * self.prefetch_multiplier)

    def _update_prefetch_count(self, index: int = 0) -> Any:
        if not self.initial_prefetch_count:
            return None
        self.initial_prefetch_count = self._prefetch_count()
        return self._update_qos_eventually(index)

    def _open(self, name: str) -> None:
        """Read a pool's queue over a channel of its own, one for each connection."""
        gate = self.gates.get(name)
        if gate is None:
            gate = Gate(self, plain(name).removeprefix(QUEUE_PREFIX))
            self.gates = {**self.gates, name: gate}
            if self._serving:
                watch(self.pool.submit(self._serve_gate(gate)), f"gate {gate.pool}", end_worker)
        if name in self._queues:
            self._queues[name].open()
            return
        queue, on_message = self.app.amqp.queues[name], partial(self._handle, queue=name)
        self._queues[name] = GatedQueue(
            queue, gate, self.connection, self.hub,
            consumer_of=lambda channel: self.app.amqp.TaskConsumer(
                channel, queues=[queue], on_message=on_message, on_decode_error=self.on_decode_error
            ),
            refuse=self._dead_letters.add, in_hand=self._in_hand, read_on=self._read_on,
        )  # fmt: skip

    @property
    def queues(self) -> list[Any]:
        """All queues that are read now."""
        common = self.task_consumer.queues if self.task_consumer is not None else []
        return [*common, *(q.queue for q in self._queues.values() if not q.gate.shut)]

    def reads(self, queue: str) -> bool:
        """Return whether a queue, given by its name at the broker or its plain one, is read now."""
        return any(queue in (q.name, q.alias) for q in self.queues)

    def add_task_queue(self, queue: str, *args: Any, **options: Any) -> None:
        """Start reading a queue, a pool's through its gate. A queue that is already read stays as it is."""
        if self.reads(queue):
            return
        queues = self.app.amqp.queues
        name = queues.aliases[queue].name if queue in queues.aliases else queue
        if not queue.startswith(QUEUE_PREFIX):
            super().add_task_queue(name, *args, **options)
            self._common = tuple(q.name for q in self.task_consumer.queues)
            return
        queues.select_add(queues[name])
        self._open(name)
        logger.info("queue %s is read", name, extra={"event": "add_consumer", "queue": name})

    def cancel_task_queue(self, queue: str) -> None:
        """Stop reading a queue. Of a pool's queue, messages that wait for a lease go back, and open calls finish."""
        task_queue = self.app.amqp.queues[queue]
        opened = self._queues.get(task_queue.name)
        if opened is None:
            super().cancel_task_queue(task_queue.name)
            self._common = tuple(q.name for q in self.task_consumer.queues)
            return
        self.app.amqp.queues.deselect(task_queue.name)
        opened.close()
        self._requeue(opened.gate.drop_held())
        logger.info(
            "queue %s is not read", task_queue.name, extra={"event": "cancel_consumer", "queue": task_queue.name}
        )

    def _requeue(self, requests: list[AdmittedRequest]) -> None:
        for request in requests:
            task_ready(request)
            request.reject(requeue=True)

    @property
    def judges(self) -> bool:
        """Whether this worker reads the queue of any pool, True before its gates run. For any thread."""
        return not self._serving or any(not gate.shut for gate in self.gates.values())
