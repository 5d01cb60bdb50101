"""Server-sent events: a view is sent whenever it changes.

Each event is a whole view, and its id is derived from the view: a client that reconnects with `Last-Event-ID`, to any
server, is not sent what it has already. A stream reads the view again only once its client has taken the last event, so
a slow client holds at most one event. It ends with the server, with its token, and with the subject of the view.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

import anyio
import orjson
from fastapi import Request
from redis.exceptions import RedisError
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from dicast.app.server.guards import still_admitted
from dicast.app.server.parts import parts_of

LOOK_EVERY_S = 0.5
TOKEN_EVERY_S = 2.0
SEND_S = 20.0
"""How long a client may take nothing before it is disconnected."""
PING_S = 15
STOP_S = 2.0
"""How long a stream may take to end when the server stops."""


class StreamEvent(NamedTuple):
    """One event. `last` ends the stream."""

    name: str
    view: object
    last: bool = False


def event_id(view: object) -> str:
    """Return the id of a view: equal views have equal ids, on every server."""
    return hashlib.sha256(orjson.dumps(view, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


class Stream(EventSourceResponse):
    """A response that streams events. `look` is called again and again, in a thread, with the id of the last event that
    the client has; the events that it returns are sent in order. Raises `TooManyStreams` when it begins."""

    def __init__(self, request: Request, read_events: Callable[[str | None], Iterable[StreamEvent]]) -> None:
        self._streams, self._subject = parts_of(request).streams, request.state.claims.subject
        stopping = anyio.Event()
        events = _events(request, read_events, request.headers.get("last-event-id"), stopping)
        super().__init__(
            events, ping=PING_S, send_timeout=SEND_S, shutdown_event=stopping, shutdown_grace_period=STOP_S
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._streams.open_stream(self._subject), suppress(SendTimeoutError):
            await super().__call__(scope, receive, send)


def _list_events(read_events: Callable[[str | None], Iterable[StreamEvent]], last: str | None) -> list[StreamEvent]:
    return list(read_events(last))


async def _events(
    request: Request,
    read_events: Callable[[str | None], Iterable[StreamEvent]],
    last: str | None,
    stopping: anyio.Event,
) -> AsyncIterator[ServerSentEvent]:
    checked_s = anyio.current_time()
    while not stopping.is_set():
        with suppress(RedisError, OSError):  # the store is unreachable: try again
            for change in await run_in_threadpool(_list_events, read_events, last):
                last = event_id(change.view)
                yield ServerSentEvent(orjson.dumps(change.view).decode(), event=change.name, id=last)
                if change.last:
                    return
            if anyio.current_time() - checked_s > TOKEN_EVERY_S:
                checked_s = anyio.current_time()
                if not await run_in_threadpool(still_admitted, request):
                    return
        with anyio.move_on_after(LOOK_EVERY_S):
            await stopping.wait()
