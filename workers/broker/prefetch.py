"""Messages of a RabbitMQ queue, fetched several at a time, as many as a gate has room for.

A quorum queue knows a limit of unacknowledged messages for each consumer alone, which cannot change while that
consumes; and a message is acknowledged late, so one limit for all that runs and all that waits would be wrong at once
for a pool whose limit moves. Here a consumer may be sent as many as there is room for when it begins. When they have
come, and there is room again, another one takes its place: what the old one brought stays with this process, and is
acknowledged as ever. Holds: of what waits at the gate, never more than there was room for is added at a time.

All on the hub's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Prefetch:
    """`consumer` is kombu's, of one queue on a channel of its own, and does not consume yet; `room` is the gate's.
    `read_on` handles what came behind the broker's word: it is out of the socket, so that no poll tells of it."""

    def __init__(self, consumer: Any, room: Callable[[], int], read_on: Callable[[], None]) -> None:
        self._consumer, self._room, self._read_on = consumer, room, read_on
        self._to_come = 0
        self._stopped = False
        handle = consumer.on_message

        def taken(message: Any) -> Any:
            self._to_come -= 1
            return handle(message)

        consumer.on_message = taken

    def look(self) -> None:
        """Once in every turn of the hub, from nowhere else: it waits for the broker's word. Raises the transport's
        errors; the connection is lost then."""
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
        """Nothing comes any more, except what has been sent already."""
        self._stopped = True
        self._consumer.cancel()

    def abandon(self) -> None:
        """Its connection is lost."""
        self._stopped = True
