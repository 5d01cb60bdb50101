"""Celery's consumer with gates in place of its rate limits.

    app.conf.worker_consumer = "dicast.workers.runtime.consumer:AdmissionConsumer"

Every provider queue has a broker channel of its own, which is read only while its gate has room, so that the backlog
stays in the broker and a throttled pool never stands in front of another. Where messages wait in the store, they are
taken and acknowledged in batches; from RabbitMQ they come as its consumers have leave (workers/broker/fetch.py).

The consumer has three parts, one built on the other: `PoolQueues` reads the queues, those of pools through their gates
and others as Celery does, and has commands add and remove them; `CheckedMessages` checks what has come;
`AdmissionConsumer` runs the gates and all that a worker does beside them.

Nothing that can be written into a queue ends a worker: a message that cannot be handled is set aside among the dead
letters, with a reason, and never loaded (`CheckedMessages`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from amqp.exceptions import AMQPError
from celery.app.task import Context
from celery.exceptions import NotRegistered
from celery.worker import state as worker_state
from celery.worker.consumer import Consumer
from celery.worker.state import active_requests, task_ready, task_reserved
from kombu.transport.redis import Channel as RedisChannel
from redis.exceptions import RedisError, ResponseError

from dicast.workers.admission.gate import FALLBACK_S, Gate
from dicast.workers.admission.gate_host import GateConfig
from dicast.workers.admission.leases import LeaseStore
from dicast.workers.admission.request import QUEUE_PREFIX, AdmittedRequest, QueuedUnits
from dicast.workers.broker import fast_json
from dicast.workers.broker.acknowledgement import (
    BatchedQoS,
    batch_acks,
    pending_acks,
    reconnect_on_error_replies,
    survive_foreign_broadcasts,
)
from dicast.workers.broker.dead_letters import DeadLetters, check_before_reading, objection, raw
from dicast.workers.broker.fetch import (
    BROKER_ERRORS,
    DeclaredQueueLengths,
    InHand,
    Prefetch,
    QueueLengths,
    Refuse,
    StoreQueueLengths,
    Watchdog,
    fetch_in_batches,
    read_pops,
)
from dicast.workers.broker.profiles import plain
from dicast.workers.nodes.beacon import NodeDuties
from dicast.workers.nodes.reaper import restore_messages
from dicast.workers.runtime.pool import TaskPool, on_loop_close
from dicast.workers.store.connection import AsyncStoreClient, connect, connect_batching, is_passing
from dicast.workers.system import private
from dicast.workers.system.supervision import end_worker, log_thread_failures, supervise, watch

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


CONTROL_SLOTS = 2
"""Slots that gates leave free, so that control work runs even when every call is slow."""
SPARE_MIN = 4


def spare_slots(calls: int) -> int:
    """Return the number of slots in addition to `-c`, which counts calls. They are for tasks whose calls have ended, so
    that their leases are in use again, and whose results are being stored; and for control work."""
    return max(SPARE_MIN, calls)


EVENTS_EVERY_S = 0.25
RECONNECT_S, RECONNECT_MAX_S = 1, 4
STOP_LOOKS = 5
"""How many checks in a row, a second apart, a stopping worker waits for a store that is unreachable."""


class _GatedBucket:
    """A placeholder for a task's rate-limit bucket in Celery; requests find their gate by queue."""

    def __init__(self, host: AdmissionConsumer) -> None:
        self._host = host

    def clear_pending(self) -> None:
        for gate in self._host.gates.values():
            gate.drop_held()


class AdmissionConsumer(CheckedMessages):
    """Celery's consumer with gates in place of its rate limits (`app.conf.worker_consumer`).

    Tasks with a true attribute `gated` pass a gate; all others run as Celery runs them.
    """

    pool: TaskPool
    store: LeaseStore

    class Blueprint(Consumer.Blueprint):  # type: ignore[misc]
        """Celery's steps, except the one that makes exchanges and queues for delayed delivery in RabbitMQ: here the
        ledger delays messages."""

        default_steps = tuple(s for s in Consumer.Blueprint.default_steps if not s.endswith(":DelayedDelivery"))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        reconnect_on_error_replies()
        survive_foreign_broadcasts()
        log_thread_failures()
        fast_json.use_for_messages()
        self.forget_queues()
        self._unknown, self._unknown_held = {}, 0
        self.asking = self.leased = 0
        self._lease_ids = itertools.count(1)
        self._services: list[asyncio.Task[None]] = []
        self._queue_lengths: QueueLengths | None = None
        self._serving = False
        self._events_due = False
        self._watchdog = Watchdog(self._room, self._reconnect)
        self.duties: NodeDuties | None = None
        # Neighbours' clocks and revoked tasks, which these two keep equal, decide nothing here; asking costs a second.
        super().__init__(*args, without_mingle=True, without_gossip=True, **kwargs)
        # A store that is full, loading or read-only answers with these: it is waited for, as for one that is away.
        self.connection_errors: tuple[type[Exception], ...] = (*self.conninfo.connection_errors, ResponseError)
        self.config: GateConfig = self.app.admission_gate
        self.config.suspension.suspended = self._suspension
        self.pool.spare, self.pool.resized = spare_slots, self.config.width.resize
        self.initial_prefetch_count = self._prefetch_count()
        self._dead_letters = DeadLetters(connect(self.config.store_url), self.config.keys)

    # ------------------------------------------------------------------ hooks of Celery, hub thread
    def connection_for_write(self, url: str | None = None, heartbeat: float | None = None) -> Any:
        """Return the connection for events. The hub does not wait until RabbitMQ has confirmed each of them."""
        options = None if self.config.broker_is_store else {"confirm_publish": False}
        return self.ensure_connected(
            self.app.connection_for_write(url=url, heartbeat=heartbeat, transport_options=options)
        )

    def bucket_for_task(self, type: Any) -> Any:
        return _GatedBucket(self) if getattr(type, "gated", False) else super().bucket_for_task(type)

    def _limit_task(self, request: Any, bucket: Any, tokens: int) -> Any:
        if not isinstance(bucket, _GatedBucket):
            return super()._limit_task(request, bucket, tokens)
        task_reserved(request)
        gate = self.gates.get(request.delivery_info["routing_key"])
        if gate is None or request.unit.pool not in ("", gate.pool):  # it would be called under another pool's lease
            self._end_request(request, "misrouted")
        elif gate.closed:  # it was on its way when its queue was closed
            self._requeue([request])
        else:
            gate.hold(request)
        return None

    def _limit_post_eta(self, request: Any, bucket: Any, tokens: int) -> Any:
        self.qos.decrement_eventually()
        return self._limit_task(request, bucket, tokens)

    def register_with_event_loop(self, hub: Any) -> None:
        """Open a channel of its own for every provider queue; called once per connection."""
        super().register_with_event_loop(hub)
        self._events_due = False
        if self.restart_count and self.config.broker_is_store:
            self._put_back_stranded()
            self.config.epoch.cuts += 1
        handler = self.create_task_handler()
        if isinstance(self.task_consumer.channel, RedisChannel):
            check_before_reading(self.task_consumer.channel, self._dead_letters.add)
        gated = [q for q in self.task_consumer._queues if q.startswith(QUEUE_PREFIX)]
        self._common = tuple(q for q in self.task_consumer._queues if q not in gated)
        self._queues, self._handle = {}, handler
        for name in gated:
            self.task_consumer._queues.pop(name)
            self._open(name)
        if not self._serving:
            self._serving = True
            self.duties = NodeDuties(self)
            self.wake_beacon()
            self.pool.give_up_on = self._give_up_on
            watch(self.pool.submit(self._serve()), "the worker's services", end_worker)

    def _read_on(self) -> None:
        """Handle everything that has arrived over the connection."""
        self.connection.transport.on_readable(self.connection.connection, self.hub)

    def on_send_event_buffered(self) -> None:
        """Schedule the buffered events: they leave a few times a second, many in a message, instead of one by one."""
        if self.hub is not None and not self._events_due:
            self._events_due = True
            self.timer.call_after(EVENTS_EVERY_S, self._send_events)

    def _send_events(self) -> None:
        self._events_due = False
        self._flush_events()

    def _put_back_stranded(self) -> None:
        """Put back messages that a lost connection had taken and that nobody works on; called after a reconnect.

        Messages of control work go back, too, since it is safe to repeat: only acknowledgements of batches outlive a
        connection.
        """
        self.pool.catch_up()
        in_progress = [
            r.message for r in list(active_requests) if isinstance(private.qos_of(r.message.channel), BatchedQoS)
        ]
        working = frozenset(message.delivery_tag for message in in_progress) | pending_acks()
        count = restore_messages(self.app, self.config.keys, self.config.node, keep=working)
        if count:
            logger.warning("reconnected: %d messages put back, %d kept", count, len(working))

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Keep kombu from restoring messages now: the next connection puts back those that nobody works on. Celery
        would have kombu restore all of them over a transport that it has dropped already, and end because of that."""
        logger.warning("the connection to the broker is lost: %r", exc, exc_info=exc)
        channels = list(self.connection.transport.channels or ()) if self.config.broker_is_store else []
        for channel in channels:
            channel.do_restore = False
        read_pops(channels, self._in_hand)
        super().on_connection_error_after_connected(exc)

    def ensure_connected(self, conn: Any) -> Any:
        """Connect with short waits. Celery's grow to 30 s, which would delay work after each outage of the broker."""
        conn.ensure_connection = partial(
            conn.ensure_connection, interval_start=RECONNECT_S, interval_step=RECONNECT_S, interval_max=RECONNECT_MAX_S
        )
        return super().ensure_connected(conn)

    def on_close(self) -> None:
        super().on_close()
        for queue in self._queues.values():
            queue.abandon()
        for gate in self.gates.values():
            gate.drop_held()

    def stop(self) -> None:
        """Stop warmly: messages waiting at the gates go back to their queues at once, open calls finish."""
        with contextlib.suppress(*self.connection_errors):
            for queue in self._queues.values():
                queue.stop()
        for gate in self.gates.values():
            for request in gate.drop_held():
                request.reject(requeue=True)
        super().stop()

    # ------------------------------------------------------------------ the loop
    async def _serve(self) -> None:
        """Run all gates and the listener for freed leases, until the pool stops and every lease has been given back."""
        client = connect_batching(self.config.store_url)
        self.store = LeaseStore(client, self.config.keys, self.config.epoch)
        self.pool.slot_freed = self.room_freed
        services = self._services
        services += [supervise(f"gate {gate.pool}", gate.run) for gate in self.gates.values()]
        declared = None if self.config.broker_is_store else DeclaredQueueLengths(self.app)
        queue_lengths = self._queue_lengths = declared or StoreQueueLengths(client)
        services += [
            supervise("see-off", partial(self._see_off, client)),
            supervise("ear", partial(self._listen, client)),
            supervise("backlog", self._watch_queues),
            supervise("watchdog", partial(self._watchdog.run, queue_lengths)),
        ]

        async def close() -> None:
            for service in services:
                service.cancel()
            await asyncio.gather(*services, return_exceptions=True)
            await client.aclose()
            if declared is not None:
                await asyncio.to_thread(declared.close)

        on_loop_close(close)

    async def _serve_gate(self, gate: Gate) -> None:
        """Run the gate of a queue that was added after the start."""
        self._services.append(supervise(f"gate {gate.pool}", gate.run))

    async def _see_off(self, client: AsyncStoreClient) -> None:
        """Let a stopping worker end although the store is unreachable, once its calls have ended.

        Their results are on disk by then, and its messages go to other workers when it is found dead.
        """
        missed = 0
        while missed < STOP_LOOKS:
            await asyncio.sleep(FALLBACK_S)
            if not _is_stopping() or self.leased:
                continue
            try:
                async with asyncio.timeout(FALLBACK_S):
                    await client.ping()
                missed = 0
            except (RedisError, OSError):
                missed += 1
        logger.error("the store is unreachable while the worker stops: other workers finish what waits for it")
        self.pool.give_up()

    async def _listen(self, client: AsyncStoreClient) -> None:
        """Wake the gates when a lease is freed elsewhere. A gate that misses a message asks again within a second."""
        epoch = self.config.epoch
        while True:
            try:
                async with client.pubsub(ignore_subscribe_messages=True) as ear:
                    server = epoch.server
                    await ear.subscribe(self.config.keys.freed, self.config.keys.notices)
                    while server == epoch.server:  # a server that is no primary any more refuses no subscriber
                        message = await ear.get_message(timeout=5.0)
                        if message is not None and message["channel"] == self.config.keys.freed:
                            self._freed(message["data"])
                        elif message is not None and message["data"] == self.config.node:
                            self.wake_beacon()
                        elif message is not None and self.duties is not None:
                            self.duties.handle_request(message["data"])
            except (RedisError, OSError) as error:
                logger.warning("cannot listen for freed leases: %s", error)
                await asyncio.sleep(FALLBACK_S)

    def _freed(self, pool: str) -> None:
        for gate in self.gates.values():
            if gate.waiting and pool in (gate.pool, "*"):
                gate.kick()

    async def _watch_queues(self) -> None:
        """Update the gates' `backlog` about once a second. Have messages that wait here for a slot go back to the
        queue, if nothing else is in it and another worker has a free slot."""
        handing_on: asyncio.Future[None] | None = None
        while True:
            await asyncio.sleep(FALLBACK_S)
            for gate in self.gates.values():
                if gate.waiting:
                    await gate.count()
            if self._keeps_work() and (handing_on is None or handing_on.done()):
                handing_on = asyncio.ensure_future(self._hand_on())

    def _keeps_work(self) -> bool:
        """Return whether messages wait here for a slot while their queue is empty, so that other workers may be
        idle."""
        return self.free_slots() <= 0 and any(gate.waiting and not gate.backlog for gate in self.gates.values())

    async def _hand_on(self) -> None:
        if self.config.hand_on is not None:
            try:
                await asyncio.to_thread(self.config.hand_on)
            except BROKER_ERRORS as error:
                logger.warning("waiting messages stay here, since the store or the broker does not answer: %s", error)
            except Exception:  # a fault of this program: the messages are begun here, only later
                logger.exception("waiting messages could not be handed over to other workers")

    async def count_waiting(self, pool: str) -> int | None:
        name = self._queue_of(pool)
        if name is not None and self._queue_lengths is not None:
            with contextlib.suppress(*BROKER_ERRORS):
                return await self._queue_lengths.waiting(name)
        return None

    async def count_by_project(self, pool: str) -> QueuedUnits | None:
        name = self._queue_of(pool)
        if name is not None and self._queue_lengths is not None:
            with contextlib.suppress(*BROKER_ERRORS):
                messages = await self._queue_lengths.peek(name)
                return QueuedUnits.from_headers(messages.headers, messages.others)
        return None

    def _queue_of(self, pool: str) -> str | None:
        return next((name for name, gate in self.gates.items() if gate.pool == pool), None)

    @property
    def stuck(self) -> str:
        """Why this worker does not take the work that it should; '' if all is well. For any thread."""
        closed = [gate.closed_by for gate in self.gates.values() if gate.closed_by]
        waiting = self._watchdog.stuck and f"work waits in {self._watchdog.stuck} and none is taken"
        return "; ".join(filter(None, [self.config.suspension.reason, self.pool.stalled, *closed, waiting]))

    def _suspension(self) -> None:
        """Hand the waiting units over to other workers."""
        self.pool.post(self._return_held)

    def _return_held(self) -> None:
        for name, gate in self.gates.items():
            if name in self._queues:
                self._queues[name].ask_anew()
            self._requeue(gate.drop_held())

    def put_back(self, requests: list[AdmittedRequest]) -> None:
        """Put requests back into their queues; on the hub."""
        for name in {request.delivery_info["routing_key"] for request in requests} & self._queues.keys():
            self._queues[name].ask_anew()
        self._requeue(requests)

    def wake_beacon(self) -> None:
        """Wake the beacon, which reads what an operator wants of this node."""
        wake = getattr(self.controller, "wake_beacon", None)
        if wake is not None:
            wake()

    def _room(self) -> dict[str, bool]:
        """Return for every queue that is consumed now whether there is room for a message of it."""
        gated = {name: gate.room() > 0 for name, gate in self.gates.items() if not gate.shut}
        return {**dict.fromkeys(self._common, self.pool.free_slots() > 0), **gated}

    def _reconnect(self) -> None:
        if self.hub is not None:
            self.hub.call_soon(_lose_connection)

    # ------------------------------------------------------------------ for the gates

    def free_slots(self) -> int:
        """Return how many more calls may begin, by the pool's free slots, `-c` and the node's width."""
        width = min(self.pool.limit, self.config.width.width)
        return max(0, min(self.pool.free_slots() - CONTROL_SLOTS, width - self.leased))

    def room_freed(self) -> None:
        for gate in self.gates.values():
            if gate.starved:
                gate.kick()

    def new_lease_id(self) -> str:
        return f"{self.config.node}/{next(self._lease_ids)}"

    def on_loop(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has given every lease back
            self.pool.loop.call_soon_threadsafe(callback)

    def set_aside(self, request: AdmittedRequest, reason: str) -> None:
        logger.error("message %s cannot be started: %s", request.id, reason)
        self.pool.post(self._end_request, request, "not startable")

    def start_request(self, request: AdmittedRequest) -> None:
        self.on_task_request(request)
        gate = self.gates.get(request.delivery_info["routing_key"])
        if self.hub is not None and gate is not None and gate.room() > 0:
            self.hub.call_soon(_nothing)  # the hub's poller asks for room again


def _is_stopping() -> bool:
    """Return whether the worker is stopping. `should_stop` is Celery's exit code, and 0 is a valid one."""
    return worker_state.should_stop is not None and worker_state.should_stop is not False


def _lose_connection() -> None:
    """Raise an error on which Celery connects anew; on the hub."""
    raise ConnectionResetError("work waits and none is taken")


def _nothing() -> None:
    """Do nothing: posting this wakes the hub."""
