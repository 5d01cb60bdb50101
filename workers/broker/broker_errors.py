"""Treats a Redis that rejects commands for a while as unreachable: the worker reconnects instead of ending.

It may be read-only (a replica, a fail-over), full, or unblocked by a change of roles. kombu counts these answers as
channel errors, which end a worker that gets one while it consumes. They are temporary, so consuming is retried.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from queue import Empty
from typing import Any

from kombu.transport import virtual
from kombu.transport.redis import Channel, QoS, Transport
from redis.exceptions import ResponseError

from dicast.workers.broker.requeue import requeue
from dicast.workers.store.errors import is_passing
from dicast.workers.system import private

logger = logging.getLogger(__name__)


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
    acknowledgements over a lost one."""
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
