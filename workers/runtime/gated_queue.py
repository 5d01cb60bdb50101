"""One pool's queue at the broker. It is read over a channel of its own, only while its gate has room, so that the
backlog stays in the broker and a throttled pool never holds up another. It is closed and reopened on the same channel.

All on the hub's thread, for one connection.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kombu.transport.redis import Channel as RedisChannel

from dicast.workers.admission.gate import Gate
from dicast.workers.broker.acknowledgement import batch_acks
from dicast.workers.broker.fetch import InHand, Refuse, fetch_in_batches
from dicast.workers.broker.prefetch import Prefetch


class GatedQueue:
    """One pool's queue. `consumer_of` makes kombu's consumer on a channel, and `read_on` handles what has arrived over
    the connection. For `refuse` and `in_hand` see `fetch_in_batches`."""

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
