"""A Redis that refuses commands for a while is one that is away: the worker reconnects instead of ending.

Read-only (a replica, a fail-over), full, or unblocked by a change of roles: kombu counts these answers as errors of a
channel, which end a worker that gets one while it consumes. They pass, so consuming begins anew until they have.
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
    """A task may end after the channel that brought it: its message has been put back, and comes again."""

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


def reconnect_when_refused() -> None:
    """From now on, in this process, kombu's Redis transport treats an error answer as a lost connection, and outlives
    acknowledgements over a lost one."""
    if ResponseError not in Transport.connection_errors:
        Transport.connection_errors = (*Transport.connection_errors, ResponseError)
        Channel.QoS = OutlivedQoS


def outlive_odd_broadcasts() -> None:
    """From now on, in this process, what is published where remote control listens and is none of it is told of, and
    ends nobody. kombu takes it for a message, whatever it is."""

    def outliving(receive: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(receive)
        def received(self: Any, client: Any) -> Any:
            try:
                return receive(self, client)
            except Exception as error:  # kombu raises whatever a foreign broadcast leads it to
                if is_passing(error) or isinstance(error, OSError | Empty):
                    raise
                logger.warning("a broadcast is not understood: %r", error, extra={"event": "odd_broadcast"})
                return None

        return received

    private.wrap_broadcasts(Channel, outliving)
