"""Fetches messages from a queue several at a time, as many as a gate has room for; and how many wait there.

From a store the messages are noted as unacknowledged in the same step:

    fetch_in_batches(channel, gate.room, dead_letters.add, in_hand)       # a channel of `batch_acks`

kombu pops one message in each turn of its hub and notes it in a transaction over a client made for it. Here the pop
only wakes the worker; one script takes as many messages as there is room for. Data that is no message is set aside.

A message that was popped and could not be noted, because the server went away in between, is nowhere but in this
process: it stays in `in_hand`, and the next channel puts it back. So does what a pop has brought over a connection that
nobody is going to read any more, once another one has been found broken (`read_pops`).

From RabbitMQ they come by a `Prefetch`. All of it is on the hub's thread. How many messages wait, untaken, and what
those say that are next, the watchdog and the gates' logs ask of whichever broker it is (`QueueLengths`). A `Watchdog`
sees to it that the work which waits is taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any, NamedTuple, Protocol

import orjson
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from dicast.workers.broker.dead_letters import read_message
from dicast.workers.store.connection import AsyncStoreClient
from dicast.workers.store.scripts import script_text
from dicast.workers.system import private
from dicast.workers.system.supervision import end_worker

logger = logging.getLogger(__name__)

Refuse = Callable[[str, str, bytes], None]
InHand = list[tuple[bytes, bytes]]
"""The keys of queues and messages that were popped from them."""

_FETCH = Path(__file__).parent / "fetch.lua"


def _open() -> bool:
    return False


def fetch_in_batches(
    channel: Any, room: Callable[[], int], refuse: Refuse, in_hand: InHand, closed: Callable[[], bool] = _open
) -> None:
    """Have a Redis channel take at most `room()` messages at once, and none while that is 0.

    While it is `closed()`, the result of a pending pop is read all the same, so that the message can go back: kombu
    would leave it unread in the socket. `refuse(queue, reason, message)` is called for data that cannot be read.
    `in_hand` outlives the channel. If a message was noted and only the answer was lost, it is delivered twice.
    """
    client = private.new_client(channel)
    while in_hand:
        client.rpush(*in_hand[-1])
        logger.warning("a message popped from %s before the broker went away is put back", in_hand.pop()[0].decode())
    take = client.register_script(script_text(_FETCH))
    channel.qos.can_consume = lambda: room() > 0 or (closed() and private.waits_for_pop(channel))
    channel.handlers["BRPOP"] = partial(_read, channel, take, room, refuse, in_hand)


def read_pops(channels: Iterable[Any], in_hand: InHand) -> None:
    """Read the results of pending pops of Redis channels that have arrived already, without waiting."""
    for channel in channels:
        if private.waits_for_pop(channel):
            with contextlib.suppress(*channel.connection_errors, RedisError):
                if channel.client.connection.can_read(timeout=0) and (popped := _popped(channel)):
                    in_hand.append(tuple(popped))


def _read(channel: Any, take: Any, room: Callable[[], int], refuse: Refuse, in_hand: InHand) -> bool:
    popped = _popped(channel)
    if not popped:
        raise Empty
    key, first = popped
    queue = key.decode().rsplit(channel.sep, 1)[0]
    keys = [key, channel.unacked_key, channel.unacked_index_key]
    in_hand.append((key, first))
    taken = take(keys=keys, args=[time.time(), first, max(0, room() - 1)])
    in_hand.remove((key, first))
    for raw, tag in zip(taken[::2], taken[1::2], strict=True):
        payload = read_message(raw)
        if payload is None:
            refuse(queue, "unreadable", raw)
            if tag:
                channel.qos.delete([tag])
            continue
        channel.qos.noted.add(payload["properties"]["delivery_tag"])
        private.deliver(channel, payload, queue)
    return True


def _popped(channel: Any) -> Any:
    """Return the result of the pending pop: the key of a queue and a message, or nothing."""
    try:
        return channel.client.parse_response(channel.client.connection, "BRPOP")
    except channel.connection_errors:
        channel.client.connection.disconnect()  # so that the next pop connects anew
        raise
    finally:
        private.end_pop(channel)


class Prefetch:
    """The prefetch of one queue. `consumer` is kombu's, on a channel of its own, and does not consume yet; `room` is
    the gate's. `read_on` handles messages that were read from the socket together with the broker's confirmation, since
    no poll reports them.

    A quorum queue has a limit of unacknowledged messages per consumer, which cannot change while the consumer is
    active. Since messages are acknowledged late, such a limit would cover all that run and all that wait, and would
    soon be wrong for a pool whose limit moves. Here a consumer may receive as many messages as there is room for when
    it begins. When they have arrived, and there is room again, another consumer takes its place; the messages of the
    old one stay with this process and are acknowledged as usual. Holds: no more messages are added to the gate at a
    time than it had room for.
    """

    def __init__(self, consumer: Any, room: Callable[[], int], read_on: Callable[[], None]) -> None:
        self._consumer, self._room, self._read_on = consumer, room, read_on
        self._to_come = 0
        self._stopped = False
        handle = consumer.on_message

        def taken(message: Any) -> Any:
            self._to_come -= 1
            return handle(message)

        consumer.on_message = taken

    def refill(self) -> None:
        """Request more messages if there is room. Call it once in every turn of the hub, and nowhere else: it waits for
        the broker's confirmation. Raises the transport's errors; the connection is lost then."""
        if self._to_come > 0 or self._stopped:
            return
        room = self._room()
        if room > 0:
            self._consumer.cancel()
            self._consumer.qos(prefetch_count=room, apply_global=False)
            self._to_come = room
            self._consumer.consume()
            self._read_on()

    def stop(self) -> None:
        """Stop fetching; only messages that have been sent already still arrive."""
        self._stopped = True
        self._consumer.cancel()

    def abandon(self) -> None:
        """Stop, because the connection is lost."""
        self._stopped = True


BROKER_ERRORS = (RedisError, OperationalError, OSError)
"""What `QueueLengths` raise while the broker does not answer."""
READ_MOST = 1_000
"""Messages of a queue that are looked at together: those that are taken next."""


class QueuedMessages(NamedTuple):
    """The headers of the messages that were looked at, and how many more wait."""

    headers: Sequence[Mapping[str, Any]]
    others: int


class QueueLengths(Protocol):
    async def waiting(self, queue: str) -> int:
        """Raises one of `BROKER_ERRORS`."""

    async def peek(self, queue: str) -> QueuedMessages:
        """Look at what waits without taking it, as far as the broker lets one. Raises one of `BROKER_ERRORS`."""


class StoreQueueLengths:
    """For a broker that is the store."""

    def __init__(self, client: AsyncStoreClient) -> None:
        self._client = client

    async def waiting(self, queue: str) -> int:
        return int(await self._client.llen(queue))

    async def peek(self, queue: str) -> QueuedMessages:
        pipe = self._client.pipeline()
        pipe.llen(queue).lrange(queue, -READ_MOST, -1)
        total, messages = await pipe.execute()
        headers = [parsed for message in messages if (parsed := _headers(message)) is not None]
        return QueuedMessages(headers, int(total) - len(headers))


class DeclaredQueueLengths:
    """Works for any broker, over a connection of its own, in a helper thread."""

    def __init__(self, app: Any) -> None:
        self._app, self._lock = app, threading.Lock()
        self._connection: Any = None

    async def waiting(self, queue: str) -> int:
        return await asyncio.to_thread(self._waiting, queue)

    async def peek(self, queue: str) -> QueuedMessages:
        """None is looked at: it would be taken, and come again as a message that was delivered before."""
        return QueuedMessages((), await self.waiting(queue))

    def _waiting(self, queue: str) -> int:
        with self._lock:
            connection = self._connection = self._connection or self._app.connection_for_read()
            try:
                declared = self._app.amqp.queues[queue](connection.default_channel).queue_declare(passive=True)
                return int(declared.message_count)
            except (*connection.connection_errors, *connection.channel_errors) as error:
                connection.collect()
                self._connection = None
                raise OperationalError(f"the broker does not report on {queue}: {error}") from error

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.release()
                self._connection = None


def _headers(message: str) -> Mapping[str, Any] | None:
    """None for what is no message of Celery's; it is set aside when it is taken."""
    try:
        headers = orjson.loads(message)["headers"]
    except (ValueError, TypeError, KeyError):
        return None
    return headers if isinstance(headers, dict) else None


CHECK_EVERY_S = 5.0
STUCK_LOOKS = 6
"""A queue is stuck after this many checks in a row (30 s) at which work waited, there was room for it, and nothing was
taken. Checks are counted instead of time, so that a process that was frozen is not taken for a stuck one."""


class Remedy(Enum):
    NONE = "none"
    RECONNECT = "reconnect"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """The progress of one queue: messages taken so far, checks without progress, and whether the worker reconnected
    since."""

    taken: int = 0
    looks: int = 0
    reconnected: bool = False

    @property
    def stuck(self) -> bool:
        return self.looks >= STUCK_LOOKS or self.reconnected


def check_progress(before: QueueProgress, *, taken: int, waiting: bool, room: bool) -> tuple[QueueProgress, Remedy]:
    """Check one queue: `taken` messages so far, whether messages are `waiting`, and whether there is `room` for them.

    Rules, first match wins: something was taken, or nothing waits -> all is well; no room -> not the queue's fault,
    nothing changes; too few checks -> wait; first time -> a new connection; still no progress -> restart the worker.

    A worker makes progress if it takes the work that waits, not if it answers pings.
    """
    if taken != before.taken or not waiting:
        return QueueProgress(taken), Remedy.NONE
    if not room:
        return before, Remedy.NONE
    after = replace(before, looks=before.looks + 1)
    if after.looks < STUCK_LOOKS:
        return after, Remedy.NONE
    if before.reconnected:
        return after, Remedy.RESTART
    return QueueProgress(taken, 0, reconnected=True), Remedy.RECONNECT


class Watchdog:
    """Watches one worker. `room` returns for every queue that is consumed whether there is room for a message of it;
    `taken` counts the messages that arrived; `reconnect` has Celery connect anew.

    If the worker does not take work that waits, it is reconnected; if that does not help, it ends.
    """

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
