"""Celery's consumer with gates in place of its rate limits.

    app.conf.worker_consumer = "dicast.workers.runtime.consumer:AdmissionConsumer"

Every provider queue has a broker channel of its own, which is read only while its gate has room, so that the backlog
stays in the broker and a throttled pool never stands in front of another. Where messages wait in the store, they are
taken and acknowledged in batches; from RabbitMQ they come as its consumers have leave (workers/broker/prefetch.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from celery.worker import state as worker_state
from celery.worker.consumer import Consumer
from celery.worker.state import active_requests, task_reserved
from kombu.transport.redis import Channel as RedisChannel
from redis.exceptions import RedisError, ResponseError

from dicast.workers.admission.gate import FALLBACK_S, Gate
from dicast.workers.admission.gate_host import GateConfig
from dicast.workers.admission.leases import LeaseStore
from dicast.workers.admission.request import QUEUE_PREFIX, AdmittedRequest, QueuedUnits
from dicast.workers.broker import fast_json
from dicast.workers.broker.acknowledgement import BatchedQoS, pending_acks
from dicast.workers.broker.broker_errors import outlive_odd_broadcasts, reconnect_when_refused
from dicast.workers.broker.dead_letters import DeadLetters, look_before_reading
from dicast.workers.broker.fetch import read_pops
from dicast.workers.broker.queue_length import BROKER_ERRORS, DeclaredQueueLengths, QueueLengths, StoreQueueLengths
from dicast.workers.nodes.reaper import restore_messages
from dicast.workers.runtime.checked_messages import CheckedMessages
from dicast.workers.runtime.duties import NodeDuties
from dicast.workers.runtime.pool import TaskPool, on_loop_close
from dicast.workers.runtime.watchdog import Watchdog
from dicast.workers.store.connection import AsyncStoreClient, connect, connect_batching
from dicast.workers.system import private
from dicast.workers.system.supervision import end_worker, supervise, tell_of_threads, watch

logger = logging.getLogger(__name__)


CONTROL_SLOTS = 2
"""Slots that gates leave free, so that control work runs even when every call is slow."""
SPARE_MIN = 4


def spare_slots(calls: int) -> int:
    """Slots besides those of `-c`, which counts calls: a unit's lease is another's as soon as its call has ended, and
    its task goes on until the result is stored; and there is control work."""
    return max(SPARE_MIN, calls)


EVENTS_EVERY_S = 0.25
RECONNECT_S, RECONNECT_MAX_S = 1, 4
STOP_LOOKS = 5
"""A worker that stops waits through so many looks, a second apart, for a store that is away."""


class _GatedBucket:
    """Stands where Celery expects a task's rate-limit bucket; requests find their gate by queue."""

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
        """Without the exchanges and queues in which Celery has messages wait for their time in RabbitMQ: here that is
        the ledger's part."""

        default_steps = tuple(s for s in Consumer.Blueprint.default_steps if not s.endswith(":DelayedDelivery"))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        reconnect_when_refused()
        outlive_odd_broadcasts()
        tell_of_threads()
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
        self.config: GateConfig = self.app.gate
        self.config.suspension.suspended = self._suspension
        self.pool.spare, self.pool.resized = spare_slots, self.config.width.resize
        self.initial_prefetch_count = self._prefetch_count()
        self._dead_letters = DeadLetters(connect(self.config.store_url), self.config.keys)

    # ------------------------------------------------------------------ hooks of Celery, hub thread
    def connection_for_write(self, url: str | None = None, heartbeat: float | None = None) -> Any:
        """For events: the hub does not wait until RabbitMQ has confirmed each of them."""
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
        """Once per connection: every provider queue moves from the common channel to one that its gate opens."""
        super().register_with_event_loop(hub)
        self._events_due = False
        if self.restart_count and self.config.broker_is_store:
            self._put_back_stranded()
            self.config.epoch.cuts += 1
        handler = self.create_task_handler()
        if isinstance(self.task_consumer.channel, RedisChannel):
            look_before_reading(self.task_consumer.channel, self._dead_letters.add)
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
        """Handle all that has come over the connection."""
        self.connection.transport.on_readable(self.connection.connection, self.hub)

    def on_send_event_buffered(self) -> None:
        """Events leave a few times a second, many in a message, instead of one by one."""
        if self.hub is not None and not self._events_due:
            self._events_due = True
            self.timer.call_after(EVENTS_EVERY_S, self._send_events)

    def _send_events(self) -> None:
        self._events_due = False
        self._flush_events()

    def _put_back_stranded(self) -> None:
        """After a reconnect: messages that were taken by the lost connection and that nobody works on go back.

        So do those of control work, which is safe to repeat: only acknowledgements of batches outlive a connection.
        """
        self.pool.catch_up()
        kept = [r.message for r in list(active_requests) if isinstance(private.qos_of(r.message.channel), BatchedQoS)]
        working = frozenset(message.delivery_tag for message in kept) | pending_acks()
        count = restore_messages(self.app, self.config.keys, self.config.node, keep=working)
        if count:
            logger.warning("reconnected: %d messages put back, %d kept", count, len(working))

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """What the lost connection had taken is put back by the next one, except what is worked on. Celery would have
        kombu put all of it back while closing, over a transport it has dropped before, and end of that."""
        logger.warning("the connection to the broker is lost: %r", exc, exc_info=exc)
        channels = list(self.connection.transport.channels or ()) if self.config.broker_is_store else []
        for channel in channels:
            channel.do_restore = False
        read_pops(channels, self._in_hand)
        super().on_connection_error_after_connected(exc)

    def ensure_connected(self, conn: Any) -> Any:
        """Celery's waits grow to 30 s: after a minute without a broker, work would stand still for a quarter of one."""
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
        """Warm stop: what waits at the gates goes back to its queue at once, open calls finish."""
        with contextlib.suppress(*self.connection_errors):
            for queue in self._queues.values():
                queue.stop()
        for gate in self.gates.values():
            for request in gate.drop_held():
                request.reject(requeue=True)
        super().stop()

    # ------------------------------------------------------------------ the loop
    async def _serve(self) -> None:
        """Run all gates and the ear for freed leases, until the pool stops and every lease has been given back."""
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
        """Of a queue that was not read from the start."""
        self._services.append(supervise(f"gate {gate.pool}", gate.run))

    async def _see_off(self, client: AsyncStoreClient) -> None:
        """A worker that is to stop does not wait for a store that is away, once its calls have ended: what they brought
        is on disk by then, and its messages come back to others when it is found dead."""
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
        logger.error("the store is away while the worker stops: what waits for it is left to others")
        self.pool.give_up()

    async def _listen(self, client: AsyncStoreClient) -> None:
        """Wake the gates when a lease is freed elsewhere. Whoever misses a message asks again within a second."""
        epoch = self.config.epoch
        while True:
            try:
                async with client.pubsub(ignore_subscribe_messages=True) as ear:
                    server = epoch.server
                    await ear.subscribe(self.config.keys.freed, self.config.keys.told)
                    while server == epoch.server:  # a server that is no primary any more refuses no subscriber
                        message = await ear.get_message(timeout=5.0)
                        if message is not None and message["channel"] == self.config.keys.freed:
                            self._freed(message["data"])
                        elif message is not None and message["data"] == self.config.node:
                            self.wake_beacon()
                        elif message is not None and self.duties is not None:
                            self.duties.heard(message["data"])
            except (RedisError, OSError) as error:
                logger.warning("no news of freed leases: %s", error)
                await asyncio.sleep(FALLBACK_S)

    def _freed(self, pool: str) -> None:
        for gate in self.gates.values():
            if gate.held and pool in (gate.pool, "*"):
                gate.kick()

    async def _watch_queues(self) -> None:
        """Keep `backlog`, the units that wait in the broker, about a second old; and have what waits here for a slot go
        back to the queue, if nothing else is in it and another worker has one free."""
        handing_on: asyncio.Future[None] | None = None
        while True:
            await asyncio.sleep(FALLBACK_S)
            for gate in self.gates.values():
                if gate.held:
                    await gate.count()
            if self._keeps_work() and (handing_on is None or handing_on.done()):
                handing_on = asyncio.ensure_future(self._hand_on())

    def _keeps_work(self) -> bool:
        """Whether messages wait here for a slot that others might have, and would find nothing else to do."""
        return self.free_slots() <= 0 and any(gate.held and not gate.backlog for gate in self.gates.values())

    async def _hand_on(self) -> None:
        if self.config.hand_on is not None:
            try:
                await asyncio.to_thread(self.config.hand_on)
            except BROKER_ERRORS as error:
                logger.warning("what waits here stays, the store or the broker does not answer: %s", error)
            except Exception:  # a fault of this program: what waits here is begun here, only later
                logger.exception("what waits here could not be handed on")

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
                return QueuedUnits.of(messages.headers, messages.others)
        return None

    def _queue_of(self, pool: str) -> str | None:
        return next((name for name, gate in self.gates.items() if gate.pool == pool), None)

    @property
    def stuck(self) -> str:
        """Why this worker does not take what it should; '' if all is well. For any thread."""
        closed = [gate.closed_by for gate in self.gates.values() if gate.closed_by]
        waiting = self._watchdog.stuck and f"work waits in {self._watchdog.stuck} and none is taken"
        return "; ".join(filter(None, [self.config.suspension.reason, self.pool.stalled, *closed, waiting]))

    def _suspension(self) -> None:
        """Units that wait here are others' from now on."""
        self.pool.post(self._return_held)

    def _return_held(self) -> None:
        for name, gate in self.gates.items():
            if name in self._queues:
                self._queues[name].ask_anew()
            self._requeue(gate.drop_held())

    def put_back(self, requests: list[AdmittedRequest]) -> None:
        """Into their queues; on the hub."""
        for name in {request.delivery_info["routing_key"] for request in requests} & self._queues.keys():
            self._queues[name].ask_anew()
        self._requeue(requests)

    def wake_beacon(self) -> None:
        """An operator wants something of this node: its beacon asks what."""
        wake = getattr(self.controller, "wake_beacon", None)
        if wake is not None:
            wake()

    def _room(self) -> dict[str, bool]:
        """Every queue that is consumed now, and whether there is room for a message of it."""
        gated = {name: gate.room() > 0 for name, gate in self.gates.items() if not gate.shut}
        return {**dict.fromkeys(self._common, self.pool.free_slots() > 0), **gated}

    def _reconnect(self) -> None:
        if self.hub is not None:
            self.hub.call_soon(_lose_connection)

    # ------------------------------------------------------------------ for the gates

    def free_slots(self) -> int:
        """Slots that a granted call would find free, and that `-c` and the node's width leave."""
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
    """Celery keeps an exit code here, and 0 is one."""
    return worker_state.should_stop is not None and worker_state.should_stop is not False


def _lose_connection() -> None:
    """On the hub: Celery answers by connecting anew."""
    raise ConnectionResetError("work waits and none is taken")


def _nothing() -> None:
    """Wakes the hub."""
