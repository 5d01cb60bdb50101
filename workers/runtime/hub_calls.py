"""Calls that other threads want made on the hub, Celery's main thread, in the order in which they were asked for."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
from collections.abc import Callable
from typing import Any

MakeCall = Callable[[Callable[..., Any], tuple[Any, ...]], None]

WAKE_WITHIN_S = 0.01
"""How long a call may wait for others before the hub is woken: one turn of it costs as much as a task's news."""

_CLOSED = None
"""Stands behind the last call."""


class HubCalls:
    """A queue of calls; `call(function, arguments)` makes one. `put`, `close` and `wake` are for any thread, `put_soon`
    for that of `loop`, all others for the hub's."""

    def __init__(self, call: MakeCall, loop: asyncio.AbstractEventLoop) -> None:
        self._call, self._loop = call, loop
        self._has_hub = False
        self._calls: queue.SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._wake_asked = self._wake_due = False
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)

    def attach(self, hub: Any) -> None:
        """Once per connection to the broker: with a lost one the hub forgets what it was to watch."""
        self._has_hub = True
        # Not `hub.call_soon`: acknowledgements that a call asks for would wait for the next event, up to 1 s.
        hub.add_reader(self._reader, self.drain)

    def put(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Have `function(*arguments)` called on the hub, after all that was put before."""
        self._calls.put((function, arguments))
        if self._has_hub:
            self.wake()
        else:  # a broker that needs no hub: called in place, as by Celery's thread pool
            self.drain()

    def put_soon(self, function: Callable[..., Any], *arguments: Any) -> None:
        """The same, together with others of the next `WAKE_WITHIN_S`."""
        self._calls.put((function, arguments))
        if not self._has_hub:
            self.drain()
        elif not self._wake_due:
            self._wake_due = True
            self._loop.call_later(WAKE_WITHIN_S, self._wake_now)

    def _wake_now(self) -> None:
        self._wake_due = False
        self.wake()

    def close(self) -> None:
        """Nothing is to come after what was put."""
        self._calls.put(_CLOSED)

    def wake(self) -> None:
        """Have the hub turn."""
        if not self._wake_asked:
            self._wake_asked = True
            self._writer.send(b"\0")

    def drain(self) -> None:
        """Make the calls that are there."""
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(64)
        self._wake_asked = False
        while True:
            try:
                entry = self._calls.get_nowait()
            except queue.Empty:
                return
            if entry is _CLOSED:
                self.close()
                return
            self._call(*entry)

    def drain_until_closed(self) -> None:
        """Make all calls, waiting for them, up to the last one; may be entered again meanwhile."""
        for entry in iter(self._calls.get, _CLOSED):
            self._call(*entry)
        self.close()
