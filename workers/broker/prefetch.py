"""Messages of a RabbitMQ queue, fetched several at a time, as many as a gate has room for.

A quorum queue has a limit of unacknowledged messages per consumer, which cannot change while the consumer is active.
Since messages are acknowledged late, such a limit would cover all that run and all that wait, and would soon be wrong
for a pool whose limit moves. Here a consumer may receive as many messages as there is room for when it begins. When
they have arrived, and there is room again, another consumer takes its place; the messages of the old one stay with this
process and are acknowledged as usual. Holds: no more messages are added to the gate at a time than it had room for.

All on the hub's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Prefetch:
    """The prefetch of one queue. `consumer` is kombu's, on a channel of its own, and does not consume yet; `room` is
    the gate's. `read_on` handles messages that were read from the socket together with the broker's confirmation, since
    no poll reports them."""

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
