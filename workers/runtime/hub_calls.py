"""Calls that other threads post to the hub, Celery's main thread; they are made in order."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
from collections.abc import Callable
from typing import Any

MakeCall = Callable[[Callable[..., Any], tuple[Any, ...]], None]

WAKE_WITHIN_S = 0.01
"""How long a call may wait for others before the hub is woken, since one turn of it costs as much as a call."""

_CLOSED = None
"""The end marker behind the last call."""


class HubCalls:
    """A queue of calls; `call(function, arguments)` makes one. `put`, `close` and `wake` may be called on any thread,
    `put_soon` on that of `loop`, all other methods on the hub's."""

    def __init__(self, call: MakeCall, loop: asyncio.AbstractEventLoop) -> None:
        self._call, self._loop = call, loop
        self._has_hub = False
        self._calls: queue.SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._wake_asked = self._wake_due = False
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)

    def attach(self, hub: Any) -> None:
        """Register with the hub; once per connection to the broker, since the hub forgets its readers with a lost
        one."""
        self._has_hub = True
        # Not `hub.call_soon`: acknowledgements that a call asks for would wait for the next event, up to 1 s.
        hub.add_reader(self._reader, self.drain)

    def put(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Have `function(*arguments)` called on the hub, after all calls that were put before."""
        self._calls.put((function, arguments))
        if self._has_hub:
            self.wake()
        else:  # a broker that needs no hub: called in place, as by Celery's thread pool
            self.drain()

    def put_soon(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Like `put`, but within `WAKE_WITHIN_S`, together with other calls."""
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
        """Mark the end: no call is put after this."""
        self._calls.put(_CLOSED)

    def wake(self) -> None:
        """Wake the hub."""
        if not self._wake_asked:
            self._wake_asked = True
            self._writer.send(b"\0")

    def drain(self) -> None:
        """Make the calls that have been put so far."""
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
        """Make all calls up to the end marker, waiting for them; may be entered again meanwhile."""
        for entry in iter(self._calls.get, _CLOSED):
            self._call(*entry)
        self.close()
