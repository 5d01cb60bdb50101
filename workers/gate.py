"""The gate: a unit enters the execution pool only with a lease from the store.

A waiting unit holds no slot. Every provider queue has a broker channel of its own, which is read only while the gate
has room, so that the backlog stays in the broker and a throttled pool never stands in front of another. A gate asks
for leases in batches, one round trip for all that were given back and all that are wanted meanwhile; it wakes when a
lease is given back here, when the store tells that one was freed elsewhere, when the wait that the store named is
over, and each second in any case.

Threads: the hub's thread receives messages and acknowledges them; all else happens on the execution pool's loop.
If the store does not answer, nothing new is granted.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

from celery.worker.consumer import Consumer
from celery.worker.request import Request
from celery.worker.state import active_requests, task_reserved
from kombu.transport.redis import Channel as RedisChannel
from redis.exceptions import RedisError, ResponseError

from workers.acknowledgement import BatchedQoS, batch_acks, pending_acks
from workers.execution_pool import TaskPool, on_loop_close
from workers.governor import Governor
from workers.node_width import NodeWidth
from workers.policy.admission import Outcome
from workers.quarantine import Quarantine, look_before_reading
from workers.reaper import restore_messages
from workers.refusals import reconnect_when_refused
from workers.signing import is_signed
from workers.store.connection import AsyncStoreClient, connect, connect_async
from workers.store.epoch import Epoch
from workers.store.keys import Keys
from workers.store.leases import LeaseStore, Returned, Verdict, Want
from workers.taking import take_in_batches
from workers.watchdog import Watchdog

logger = logging.getLogger(__name__)

QUEUE_PREFIX = "provider."
HEADER = "dicast"
HELD_MAX = 32
"""Messages one gate takes from the broker ahead of their leases; few, so that other workers find work too."""
CROWD_MAX = 256
"""Messages it takes besides these, where several projects use the pool: as many as belong to projects that fill more
than their part of `HELD_MAX`, since others may stand behind them in the queue."""
ASKED_MIN = 4
"""Leases asked for at once while few are granted: asking in vain costs the store as much as a grant."""
BROKEN = ("breaker", "probe")
CONTROL_SLOTS = 2
"""Slots that gates leave free, so that control work runs even when every call is slow."""
FALLBACK_S = 1.0
EVENTS_EVERY_S = 0.25
OVER_SHARE_EVERY_S = 60.0
"""How often it is told of a project that it asks for more than its share."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """What a message tells the gate about its unit (the header `dicast`); `labels` are passed on to the observer.
    `model` and the estimated tokens are what budgets are charged by; `elsewhere`: other pools would do as well."""

    job: str
    project: str
    labels: Mapping[str, Any]
    model: str = ""
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    elsewhere: bool = False

    @classmethod
    def from_header(cls, header: Any) -> Admitted:
        """Read a message's header; a foreign or broken one belongs to no job and is passed to its task unleased."""
        if not isinstance(header, dict):
            header = {}
        return cls(
            job=str(header.get("job", "")),
            project=str(header.get("project", "")),
            labels=header,
            model=str(header.get("model", "")),
            input_tokens=_tokens(header.get("input_tokens")),
            output_tokens=_tokens(header.get("output_tokens")),
            elsewhere=header.get("elsewhere") is True,
        )


def _tokens(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e12 else 0.0


class Observer(Protocol):
    """Told of every event of the gate, on the loop's thread."""

    def queueing(self, unit: Admitted, pool: str, depth: int) -> None: ...
    def acquired(self, unit: Admitted, pool: str, lease: str, open_calls: int) -> None: ...
    def released(self, unit: Admitted, pool: str, lease: str, open_calls: int) -> None: ...
    def over_share(self, unit: Admitted, pool: str, limit: int, projects: int) -> None: ...


@dataclass(frozen=True, slots=True)
class GateConfig:
    """What the composition root tells the gate, as `app.gate`. `lease_s` gives the life of a pool's leases: longer than
    any call of it, but no longer than needed, since a frozen node's lease is free only when it ends. `governor` is the
    running loop's own, `width` bounds the calls of this process."""

    store_url: str
    keys: Keys
    node: str
    lease_s: Callable[[str], float]
    observer: Observer
    governor: Callable[[], Governor]
    width: NodeWidth
    epoch: Epoch
    broker_is_store: bool = True


class Lease:
    """The right to have one call open until `expires_at` (the loop's monotonic clock). Given back once.

    `outcome` is how the call ended, as soon as that is known: None while it was not made.
    """

    __slots__ = ("_gate", "expires_at", "id", "outcome", "unit")

    def __init__(self, gate: Gate, lease_id: str, unit: Admitted, expires_at: float) -> None:
        self._gate: Gate | None = gate
        self.id, self.unit, self.expires_at = lease_id, unit, expires_at
        self.outcome: Outcome | None = None

    def release(self) -> None:
        """Give the lease back; more than once is once. Only on the loop's thread."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.give_back(self)

    def release_from_any_thread(self) -> None:
        """Give the lease back soon."""
        if self._gate is not None:
            self._gate.host.on_loop(self.release)


class AdmittedRequest(Request):  # type: ignore[misc]
    """A request of a gated task. Such tasks acknowledge late: every final state ends in `acknowledge` or `reject`."""

    lease: Lease | None = None
    dropped = False
    announced = False

    @cached_property
    def unit(self) -> Admitted:
        return Admitted.from_header(self._request_dict.get(HEADER))

    def acknowledge(self) -> None:
        super().acknowledge()
        self._end()

    def reject(self, requeue: bool = False) -> None:
        super().reject(requeue)
        self._end()

    def _end(self) -> None:
        if self.lease is not None:
            lease, self.lease = self.lease, None
            lease.release_from_any_thread()


class Gate:
    """Admission of one pool's units into this process."""

    def __init__(self, host: AdmissionConsumer, pool: str) -> None:
        self.host, self.pool = host, pool
        self.held: deque[AdmittedRequest] = deque()
        self.backlog = 0
        self._projects = 0
        self._batch = ASKED_MIN
        self._give_back: list[str | Returned] = []
        self._deciding: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._open_calls = 0
        self._told: dict[str, float] = {}

    # ------------------------------------------------------------------ any thread
    def room(self) -> int:
        """How many messages may be taken from the broker now. One project's come many at once, when half are gone; of
        several, as soon as there is room, for the next may stand behind the others'."""
        free = self.host.free_slots()
        most, held = max(1, min(HELD_MAX, free)), len(self.held) - (self._crowd() if free else 0)
        return max(0, most - held) if self._projects > 1 or held <= most // 2 else 0

    def _crowd(self) -> int:
        """Waiting messages beyond their projects' equal parts."""
        if self._projects < 2:
            return 0
        part = HELD_MAX // self._projects
        waiting = Counter(request.unit.project for request in list(self.held))
        return min(CROWD_MAX, sum(max(0, n - part) for n in waiting.values()))

    def hold(self, request: AdmittedRequest) -> None:
        self.held.append(request)
        self.host.on_loop(self.kick)

    def drop_held(self) -> list[AdmittedRequest]:
        """Forget the waiting messages: their connection is gone, or they go back to the queue."""
        dropped = list(self.held)
        self.held.clear()
        for request in dropped:
            request.dropped = True
        return dropped

    # ------------------------------------------------------------------ the loop
    def kick(self) -> None:
        self._wake.set()

    def give_back(self, lease: Lease) -> None:
        self._give_back.append(Returned(lease.id, lease.outcome))
        self.host.leased -= 1
        self.host.config.width.record(lease.outcome)
        self._open_calls = max(0, self._open_calls - 1)
        self.host.config.observer.released(lease.unit, self.pool, lease.id, self._open_calls)
        self.kick()

    async def run(self) -> None:
        """Serve until cancelled; then give back what is left to give."""
        wait = FALLBACK_S
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._wake.wait()
                self._wake.clear()
                try:
                    wait = await self._step()
                except RedisError as error:
                    logger.warning("gate %s is closed, the store does not answer: %s", self.pool, error)
                    wait = FALLBACK_S
                    await self.flush()
        finally:
            await self.flush()

    async def flush(self) -> None:
        """Give back all leases that calls have ended with, without asking for new ones."""
        if self._give_back:
            with contextlib.suppress(RedisError):
                await self._admit([], ())

    async def _step(self) -> float:
        """Give back and ask once; returns the longest sensible wait until the next time, s."""
        room = max(0, self.host.free_slots() - self.host.asking)
        asked = in_turns(list(self.held), min(room, self._batch))
        if not asked and not self._give_back:
            return FALLBACK_S
        wants = [self._want(r.unit) for r in asked]
        self.host.asking += len(asked)
        try:
            verdicts, wait_ms = await self._admit(wants, asked)
        finally:
            self.host.asking -= len(asked)
        if wait_ms >= 0:
            return min(FALLBACK_S, wait_ms / 1000)
        # More may wait than one batch asks for, or than there were slots for.
        return 0.0 if asked and all(verdicts) and self.held and self.host.free_slots() > 0 else FALLBACK_S

    def _want(self, unit: Admitted) -> Want:
        jitter = random.uniform(-1.0, 1.0)  # noqa: S311  spreads grants, guards nothing
        return Want(
            self.host.new_lease_id(), unit.job, unit.project, unit.model, unit.input_tokens, unit.output_tokens, jitter
        )

    async def _admit(self, wants: list[Want], asked: Sequence[AdmittedRequest]) -> tuple[list[Verdict], int]:
        config = self.host.config
        lease_s = config.lease_s(self.pool)
        given, self._give_back = self._give_back, []
        started = asyncio.get_running_loop().time()
        try:
            answer = await self.host.store.admit(
                pool=self.pool,
                node=config.node,
                ttl_ms=int(lease_s * 1000),
                give_back=given,
                wanted=wants,
            )
        except RedisError:
            # The step may have been taken all the same: the leases asked for are given back as well.
            self._give_back = [*given, *(w.lease for w in wants), *self._give_back]
            raise
        self._open_calls, self._projects = answer.open_in_all, answer.projects
        if asked:
            granted = sum(verdict is not Verdict.REFUSED for verdict in answer.verdicts)
            self._batch = max(ASKED_MIN, min(HELD_MAX, 2 * granted))
        if answer.decide:
            self._decide()
        expires_at = started + lease_s
        for request, want, verdict, reason in zip(asked, wants, answer.verdicts, answer.reasons, strict=True):
            # What would do as well elsewhere does not wait for a broken pool: without a lease, its task sends it on.
            if verdict is Verdict.REFUSED and not (request.unit.elsewhere and reason in BROKEN):
                if not request.announced:
                    request.announced = True
                    config.observer.queueing(request.unit, self.pool, len(self.held) + self.backlog)
                if reason == "fair_share" and self._is_news(request.unit.project, started):
                    config.observer.over_share(request.unit, self.pool, answer.limit, answer.projects)
                continue
            try:
                self.held.remove(request)
            except ValueError:  # dropped meanwhile: its message comes again
                if verdict is Verdict.GRANTED:
                    self._give_back.append(want.lease)
                continue
            if verdict is Verdict.GRANTED:
                request.lease = Lease(self, want.lease, request.unit, expires_at)
                self.host.leased += 1
                config.observer.acquired(request.unit, self.pool, want.lease, answer.open_in_all)
            request._request_dict["lease"] = request.lease
            self.host.start_request(request)
        return list(answer.verdicts), answer.retry_after_ms

    def _is_news(self, project: str, now: float) -> bool:
        """Whether nobody was told of this project in the last `OVER_SHARE_EVERY_S`."""
        self._told = {name: at for name, at in self._told.items() if now < at + OVER_SHARE_EVERY_S}
        is_news = project not in self._told
        self._told.setdefault(project, now)
        return is_news

    def _decide(self) -> None:
        """Have the governor decide, beside the gate's own work; what it decides is told by the store."""
        if self._deciding is None or self._deciding.done():
            self._deciding = asyncio.ensure_future(self._tick())

    async def _tick(self) -> None:
        try:
            await self.host.config.governor().tick(self.pool)
        except (RedisError, OSError) as error:
            logger.warning("no decision for pool %s: %s", self.pool, error)
        except Exception:
            # A fault of this program: the last decision stays in force until it is stale, and calls go on.
            logger.exception("no decision for pool %s", self.pool)


def in_turns(held: Iterable[AdmittedRequest], most: int) -> list[AdmittedRequest]:
    """Up to `most` of the waiting requests: the oldest of each project first, then their second ones, and so on, so
    that a project with a long queue stands in front of nobody."""
    turns: dict[str, int] = defaultdict(int)
    ranked = []
    for number, request in enumerate(held):
        project = request.unit.project
        ranked.append((turns[project], number, request))
        turns[project] += 1
    return [request for _, _, request in sorted(ranked, key=lambda r: r[:2])[:most]]


class _GatedBucket:
    """Stands where Celery expects a task's rate-limit bucket; requests find their gate by queue."""

    def __init__(self, host: AdmissionConsumer) -> None:
        self._host = host

    def clear_pending(self) -> None:
        for gate in self._host.gates.values():
            gate.drop_held()


class AdmissionConsumer(Consumer):  # type: ignore[misc]
    """Celery's consumer with gates in place of its rate limits (`app.conf.worker_consumer`).

    Tasks with a true attribute `gated` pass a gate; all others run as Celery runs them.
    """

    pool: TaskPool
    store: LeaseStore

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        reconnect_when_refused()
        self.gates: dict[str, Gate] = {}
        self.asking = self.leased = 0
        self._lease_ids = itertools.count(1)
        self._channels: list[Any] = []
        self._serving = False
        self._events_due = False
        self._watchdog = Watchdog(self._room, self._reconnect)
        # Neighbours' clocks and revoked tasks, which these two keep equal, decide nothing here; asking costs a second.
        super().__init__(*args, without_mingle=True, without_gossip=True, **kwargs)
        # A store that is full, loading or read-only answers with these: it is waited for, as for one that is away.
        self.connection_errors: tuple[type[Exception], ...] = (*self.conninfo.connection_errors, ResponseError)
        self.config: GateConfig = self.app.gate
        self._quarantine = Quarantine(connect(self.config.store_url), self.config.keys)

    # ------------------------------------------------------------------ hooks of Celery, hub thread
    def bucket_for_task(self, type: Any) -> Any:
        return _GatedBucket(self) if getattr(type, "gated", False) else super().bucket_for_task(type)

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Any:
        """Celery's, with each message counted, as taking them is the proof of life, and looked at: one that is not
        signed though it must be, or that Celery cannot read, is set aside."""
        handle = super().create_task_handler(*args, **kwargs)
        key: str | None = getattr(self.app, "message_key", None)

        def handled(message: Any) -> Any:
            self._watchdog.taken[message.delivery_info["routing_key"]] += 1
            if key and not is_signed(key, message.headers, message.body):
                return self._set_aside(message, "unsigned")
            try:
                return handle(message)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                logger.warning("Celery cannot read a message: %r", error)
                return self._set_aside(message, "malformed")

        return handled

    def on_unknown_message(self, body: Any, message: Any) -> None:
        self._set_aside(message, "no task message")

    def on_unknown_task(self, body: Any, message: Any, exc: Any) -> None:
        self._set_aside(message, "unknown task")

    def on_invalid_task(self, body: Any, message: Any, exc: Any) -> None:
        self._set_aside(message, "invalid task")

    def on_decode_error(self, message: Any, exc: Any) -> None:
        self._set_aside(message, "undecodable")

    def _set_aside(self, message: Any, reason: str) -> None:
        self._quarantine.add(message.delivery_info["routing_key"], reason, message.body)
        message.reject_log_error(logger, self.connection_errors)

    def _limit_task(self, request: Any, bucket: Any, tokens: int) -> Any:
        if not isinstance(bucket, _GatedBucket):
            return super()._limit_task(request, bucket, tokens)
        task_reserved(request)
        gate = self.gates.get(request.delivery_info["routing_key"])
        if gate is None:  # a gated task on a queue that is no provider's: there is no limit to hold it by
            request.reject(requeue=False)
            logger.error("message %s of %s came by a queue without a gate", request.id, request.name)
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
        if self.restart_count:
            self._put_back_stranded()
        handler, self._channels = self.create_task_handler(), []
        if isinstance(self.task_consumer.channel, RedisChannel):
            look_before_reading(self.task_consumer.channel, self._quarantine.add)
        for name in [q for q in self.task_consumer._queues if q.startswith(QUEUE_PREFIX)]:
            self.task_consumer._queues.pop(name)
            gate = self.gates.get(name)
            if gate is None:
                gate = self.gates[name] = Gate(self, name.removeprefix(QUEUE_PREFIX))
            channel = self.connection.channel()
            if isinstance(channel, RedisChannel):
                batch_acks(channel)
                take_in_batches(channel, gate.room, self._quarantine.add)
            else:
                channel.qos.can_consume = partial(_has_room, gate)
            consumer = self.app.amqp.TaskConsumer(channel, queues=[self.app.amqp.queues[name]], on_message=handler)
            consumer.consume()
            self._channels.append(consumer)
        if not self._serving:
            self._serving = True
            self.pool.submit(self._serve())

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
        kept = [r._message for r in list(active_requests) if isinstance(r._message.channel._qos, BatchedQoS)]
        working = frozenset(message.delivery_tag for message in kept) | pending_acks()
        count = restore_messages(self.app, self.config.keys, self.config.node, keep=working)
        if count:
            logger.warning("reconnected: %d messages put back, %d kept", count, len(working))

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """What the lost connection had taken is put back by the next one, except what is worked on. Celery would have
        kombu put all of it back while closing, over a transport it has dropped before, and end of that."""
        for channel in self.connection.transport.channels or ():
            channel.do_restore = False
        super().on_connection_error_after_connected(exc)

    def on_close(self) -> None:
        super().on_close()
        for gate in self.gates.values():
            gate.drop_held()

    def stop(self) -> None:
        """Warm stop: what waits at the gates goes back to its queue at once, open calls finish."""
        for gate in self.gates.values():
            for request in gate.drop_held():
                request.reject(requeue=True)
        super().stop()

    # ------------------------------------------------------------------ the loop
    async def _serve(self) -> None:
        """Run all gates and the ear for freed leases, until the pool stops and every lease has been given back."""
        client = connect_async(self.config.store_url)
        self.store = LeaseStore(client, self.config.keys, self.config.epoch)
        services = [asyncio.ensure_future(gate.run()) for gate in self.gates.values()]
        services += [asyncio.ensure_future(self._listen(client)), asyncio.ensure_future(self._watch_queues(client))]
        if self.config.broker_is_store:
            services.append(asyncio.ensure_future(self._watchdog.run(client)))

        async def close() -> None:
            for service in services:
                service.cancel()
            await asyncio.gather(*services, return_exceptions=True)
            await client.aclose()

        on_loop_close(close)

    async def _listen(self, client: AsyncStoreClient) -> None:
        """Wake the gates when a lease is freed elsewhere. Whoever misses a message asks again within a second."""
        while True:
            try:
                async with client.pubsub(ignore_subscribe_messages=True) as ear:
                    await ear.subscribe(self.config.keys.freed)
                    while True:
                        message = await ear.get_message(timeout=5.0)
                        if message is not None:
                            self._freed(message["data"])
            except (RedisError, OSError) as error:
                logger.warning("no news of freed leases: %s", error)
                await asyncio.sleep(FALLBACK_S)

    def _freed(self, pool: str) -> None:
        for gate in self.gates.values():
            if gate.held and pool in (gate.pool, "*"):
                gate.kick()

    async def _watch_queues(self, client: AsyncStoreClient) -> None:
        """Keep `backlog`, the units that wait in the broker, about a second old where the broker is the store."""
        while self.config.broker_is_store:
            await asyncio.sleep(FALLBACK_S)
            for name, gate in list(self.gates.items()):
                if gate.held:
                    with contextlib.suppress(RedisError, OSError):
                        gate.backlog = await client.llen(name)

    @property
    def stuck(self) -> str:
        """Queues with work that this worker should take and does not, '' if all is well."""
        return self._watchdog.stuck

    def _room(self) -> dict[str, bool]:
        """Every queue that is consumed now, and whether there is room for a message of it."""
        common = list(self.task_consumer._queues) if self.task_consumer else []
        gated = {name: gate.room() > 0 for name, gate in self.gates.items()}
        return {**dict.fromkeys(common, self.pool.free_slots() > 0), **gated}

    def _reconnect(self) -> None:
        if self.hub is not None:
            self.hub.call_soon(_lose_connection)

    # ------------------------------------------------------------------ for the gates

    def free_slots(self) -> int:
        """Slots that a granted call would find free, and that the node's width leaves."""
        return max(0, min(self.pool.free_slots() - CONTROL_SLOTS, self.config.width.width - self.leased))

    def new_lease_id(self) -> str:
        return f"{self.config.node}/{next(self._lease_ids)}"

    def on_loop(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has given every lease back
            self.pool.loop.call_soon_threadsafe(callback)

    def start_request(self, request: AdmittedRequest) -> None:
        self.on_task_request(request)
        gate = self.gates.get(request.delivery_info["routing_key"])
        if self.hub is not None and gate is not None and gate.room() > 0:
            self.hub.call_soon(_nothing)  # the hub's poller asks for room again


def _has_room(gate: Gate) -> bool:
    return gate.room() > 0


def _lose_connection() -> None:
    """On the hub: Celery answers by connecting anew."""
    raise ConnectionResetError("work waits and none is taken")


def _nothing() -> None:
    """Wakes the hub."""
