"""Acknowledgements in batches, one round trip to Redis each, kept until the server has them; and putting messages back.

    batch_acks(connection.channel())       # before anything is consumed or set on its `qos`

kombu acknowledges every message by itself, in a transaction over a client made for it, and forgets an acknowledgement
that does not arrive: the message of a task that has ended comes again. Here a message counts as acknowledged at once
(it frees its place in the prefetch window and is not restored when the channel closes); the delivery tags wait until
the server has deleted them, also across connections, for a tag names its message on any of them. A process that dies
with tags waiting has its messages redelivered: at least once, as before.

All on the hub's thread. In a process without a hub, kombu's own way.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from functools import cache, partial, wraps
from pathlib import Path
from queue import Empty
from typing import Any

from kombu.asynchronous import get_event_loop
from kombu.transport import redis, virtual
from kombu.transport.redis import Channel, QoS, Transport
from redis.exceptions import ResponseError

from dicast.workers.broker.dead_letters import RETURNS
from dicast.workers.store.connection import is_passing
from dicast.workers.store.scripts import script_text
from dicast.workers.system import private

_REQUEUE = Path(__file__).parent / "requeue.lua"
TOGETHER = 200

logger = logging.getLogger(__name__)


def requeue(channel: Any, client: Any, tags: Sequence[str], *, lost: bool = False) -> int:
    """Put back messages from a Redis channel's key of unacknowledged ones; returns how many of them it still held.

    Each goes back at most once, however many processes do this concurrently. `lost` says that the worker that held them
    is gone, which is counted in the messages (`RETURNS`).

    Many go back in one step. kombu moves each by itself, in a transaction that conflicts with all concurrent ones, and
    that a store with full memory rejects. A message goes behind those that wait, so that one that kills its workers
    does not hold up others.
    """
    unacked, index = channel.unacked_key, channel.unacked_index_key
    queue_of = cache(partial(private.queue_of, channel))
    restore, restored = client.register_script(script_text(_REQUEUE)), 0
    for first in range(0, len(tags), TOGETHER):
        some, moves = tags[first : first + TOGETHER], []
        for tag, entry in zip(some, client.hmget(unacked, some), strict=True):
            if entry is None:
                continue
            try:
                exchange, routing_key, message = _redelivered(entry, lost)
                moves += [tag, queue_of(exchange, routing_key), message]
            except (ValueError, TypeError, KeyError) as error:
                client.hdel(unacked, tag)
                logger.error("the unacknowledged entry %r is no message: %r", tag, error,
                             extra={"event": "quarantined", "reason": "unreadable"})  # fmt: skip
        restored += restore(keys=[unacked, index], args=moves) if moves else 0
    return restored


def _redelivered(entry: bytes | str, lost: bool) -> tuple[str, str, str]:
    """Return exchange, routing key, and the message as it goes back. Its typed values stay as they are written."""
    message, exchange, routing_key = json.loads(entry)
    message["properties"]["delivery_info"]["redelivered"] = True
    headers = message["headers"]
    if lost and isinstance(headers, dict):
        before = headers.get(RETURNS)
        headers[RETURNS] = 1 + (before if isinstance(before, int) else 0)
    return exchange, routing_key, json.dumps(message)


TOGETHER_S = 0.05
"""How long an acknowledgement waits for others: alone it would cost as much as all other steps of its message."""
RETRY_S = 1.0


def batch_acks(channel: Any) -> None:
    """Let a Redis channel acknowledge in batches; raises RuntimeError if it has received messages already."""
    private.replace_qos(channel, BatchedQoS)


def pending_acks() -> frozenset[str]:
    """Return the delivery tags of ended tasks whose messages the server may still hold as unacknowledged."""
    return frozenset(tag for pending in _pending.values() for tag in pending.tags)


class BatchedQoS(redis.QoS):  # type: ignore[misc]
    """kombu's bookkeeping of one channel's deliveries; `noted` are tags that the server has as unacknowledged."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.noted: set[str] = set()
        self._pending = _pending.setdefault(self.unacked_key, _PendingAcks())
        self._pending.adopt(self)

    def append(self, message: Any, delivery_tag: str) -> None:
        if delivery_tag in self.noted:
            self.noted.remove(delivery_tag)
            virtual.QoS.append(self, message, delivery_tag)
        else:
            super().append(message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        virtual.QoS.ack(self, delivery_tag)
        self._pending.add(delivery_tag)
        if get_event_loop() is None:
            self._pending.flush()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if self.channel.closed:
            virtual.QoS.ack(self, delivery_tag)
            self._pending.reject(delivery_tag, requeue)
        else:
            super().reject(delivery_tag, requeue=requeue)

    def restore_by_tag(self, tag: str, client: Any = None, leftmost: bool = False) -> None:
        with self.channel.conn_or_acquire(client) as connected:
            requeue(self.channel, connected, [tag])

    def restore_unacked_once(self, stderr: Any = None) -> None:
        self._pending.flush()
        super().restore_unacked_once(stderr)

    def delete(self, tags: list[str]) -> None:
        with self.pipe_or_acquire() as pipe:
            pipe.zrem(self.unacked_index_key, *tags).hdel(self.unacked_key, *tags).execute()


class _PendingAcks:
    """The pending tags of all channels that share one key of unacknowledged messages."""

    def __init__(self) -> None:
        self.tags: set[str] = set()
        self._qos: BatchedQoS | None = None
        self._asked = False

    def adopt(self, qos: BatchedQoS) -> None:
        """Use this channel from now on: the newest one is the most likely to be connected."""
        self._qos, self._asked = qos, False
        self._ask(TOGETHER_S)

    def add(self, tag: str) -> None:
        self.tags.add(tag)
        self._ask(TOGETHER_S)

    def reject(self, tag: str, requeue: bool) -> None:
        """Reject a message over the newest channel, because the one that delivered it is closed."""
        if requeue and self._qos is not None and self._qos.channel.connection is not None:
            self._qos.restore_by_tag(tag, leftmost=True)
        elif not requeue:
            self.add(tag)

    def flush(self) -> None:
        self._asked = False
        tags = list(self.tags)
        if not tags or self._qos is None or self._qos.channel.connection is None:
            return  # the next channel sends them
        try:
            self._qos.delete(tags)
        except self._qos.channel.connection_errors as error:
            logger.warning("%d acknowledgements wait for the broker: %s", len(tags), error)
            self._ask(RETRY_S)
        except Exception:  # whatever it is, the messages are still to be acknowledged
            self._ask(RETRY_S)
            raise
        else:
            self.tags.difference_update(tags)

    def _ask(self, delay_s: float) -> None:
        hub = get_event_loop()
        if self.tags and not self._asked and hub is not None:
            self._asked = True
            hub.call_later(delay_s, self.flush)


_pending: dict[str, _PendingAcks] = {}


class OutlivedQoS(QoS):  # type: ignore[misc]
    """Ignores acknowledgements over a closed channel: the message has been put back, and is delivered again."""

    def ack(self, delivery_tag: str) -> None:
        if self.channel.closed:
            virtual.QoS.ack(self, delivery_tag)
        else:
            super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if self.channel.closed:
            virtual.QoS.ack(self, delivery_tag)
        else:
            super().reject(delivery_tag, requeue=requeue)

    def restore_by_tag(self, tag: str, client: Any = None, leftmost: bool = False) -> None:
        with self.channel.conn_or_acquire(client) as connected:
            requeue(self.channel, connected, [tag])


def reconnect_on_error_replies() -> None:
    """Have kombu's Redis transport, in this process, treat an error answer as a lost connection, and ignore
    acknowledgements over a lost one.

    A Redis that rejects commands for a while is treated as unreachable: the worker reconnects instead of ending. It may
    be read-only (a replica, a fail-over), full, or unblocked by a change of roles. kombu counts these answers as
    channel errors, which end a worker that gets one while it consumes. They are temporary, so consuming is retried.
    """
    if ResponseError not in Transport.connection_errors:
        Transport.connection_errors = (*Transport.connection_errors, ResponseError)
        Channel.QoS = OutlivedQoS


def survive_foreign_broadcasts() -> None:
    """Have foreign data on the channels of remote control logged and ignored, in this process. kombu takes anything
    there for a message, and would end on it."""

    def outliving(receive: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(receive)
        def received(self: Any, client: Any) -> Any:
            try:
                return receive(self, client)
            except Exception as error:  # kombu raises whatever a foreign broadcast leads it to
                if is_passing(error) or isinstance(error, OSError | Empty):
                    raise
                logger.warning("a broadcast could not be read: %r", error, extra={"event": "odd_broadcast"})
                return None

        return received

    private.wrap_broadcasts(Channel, outliving)
