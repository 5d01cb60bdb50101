"""The objects that the routes use: made once for each server, and found from a request."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import anyio
from fastapi import Depends, Request

from dicast.app.access.audit import Audit
from dicast.app.access.membership import Membership
from dicast.app.access.scopes import Claims
from dicast.app.access.tokens import Tokens
from dicast.app.application import Dicast
from dicast.app.monitoring.snapshot import SharedState, read_shared
from dicast.app.reports.browse import Browser
from dicast.app.server.errors import TooManyStreams
from dicast.app.server.idempotency import IdempotencyKeys
from dicast.app.server.keys import ServerKeys
from dicast.app.server.rates import Rates, RequestRate
from dicast.app.server.uploads import Uploads

STREAMS_MAX = 256
STREAMS_SHARE = 32
"""The most streams of one subject."""
AT_ONCE = 16
"""The most requests of one subject that are served at once; there are 40 threads."""
SHARED_S = 1.0
ADDRESS_FACTOR = 4
"""The factor by which an address may make more requests than a token: several users may share one."""


class Streams:
    """Counts the open event streams of this server, and refuses more than it can serve, or than a subject's share."""

    def __init__(self, most: int = STREAMS_MAX, share: int = STREAMS_SHARE) -> None:
        self._most, self._share, self._open, self._lock = most, share, Counter[str](), threading.Lock()

    @contextmanager
    def open_stream(self, subject: str) -> Iterator[None]:
        """Count one stream of a subject inside the context. Raises `TooManyStreams`."""
        with self._lock:
            if self._open.total() >= self._most:
                raise TooManyStreams(f"{self._most} event streams are open here, and no more are taken")
            if self._open[subject] >= self._share:
                raise TooManyStreams(f"{self._share} event streams of {subject} are open here, and no more are taken")
            self._open[subject] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open[subject] -= 1
                self._open += Counter()  # forgets who has none


class RequestTurns:
    """Limits how many requests of a subject are served at once: else slow requests of one subject could take all
    threads, and everybody else's would wait."""

    def __init__(self, most: int = AT_ONCE) -> None:
        self._most, self._limiters, self._users = most, dict[str, anyio.CapacityLimiter](), Counter[str]()

    @asynccontextmanager
    async def take_turn(self, subject: str) -> AsyncIterator[None]:
        """Wait for a turn of a subject, and hold it inside the context. Only on the server's loop."""
        limiter = self._limiters.setdefault(subject, anyio.CapacityLimiter(self._most))
        self._users[subject] += 1
        try:
            async with limiter:
                yield
        finally:
            self._users[subject] -= 1
            if not self._users[subject]:
                del self._users[subject], self._limiters[subject]


class RecentState:
    """The shared state, cached for `SHARED_S`: any number of event streams read it as often as one."""

    def __init__(self, read: Callable[[], SharedState], clock: Callable[[], float] = time.monotonic) -> None:
        self._read, self._clock, self._lock = read, clock, threading.Lock()
        self._snapshot: tuple[float, SharedState] | None = None

    def __call__(self) -> SharedState:
        """Return the state, at most `SHARED_S` old. Raises redis errors."""
        with self._lock:
            if self._snapshot is None or self._clock() - self._snapshot[0] > SHARED_S:
                self._snapshot = self._clock(), self._read()
            return self._snapshot[1]


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one server. Without `require_auth` every caller may do everything; only on a loopback address.
    `tokens` and `members` are None if no secret is set. `hosts` are the names under which it may be reached; None:
    any."""

    dicast: Dicast
    tokens: Tokens | None
    members: Membership | None
    audit: Audit
    rates: Rates
    keys: IdempotencyKeys
    uploads: Uploads
    rate: RequestRate
    address_rate: RequestRate
    require_auth: bool
    hosts: frozenset[str] | None
    secrets: tuple[str, ...]
    recent_state: RecentState
    streams: Streams = field(default_factory=Streams)
    turns: RequestTurns = field(default_factory=RequestTurns)
    browser: Browser = field(default_factory=Browser)

    @classmethod
    def for_server(cls, dicast: Dicast, hosts: frozenset[str] | None) -> Parts:
        """Return the parts of a server of this installation."""
        settings = dicast.settings
        keys = ServerKeys(settings.namespace)
        return cls(
            dicast=dicast,
            tokens=dicast.tokens if dicast.token_secrets else None,
            members=dicast.membership if dicast.token_secrets else None,
            audit=dicast.audit,
            rates=Rates(dicast.store, keys),
            keys=IdempotencyKeys(dicast.store, keys),
            uploads=Uploads(Path(settings.upload_dir), settings.upload_max_bytes, settings.upload_folder_bytes),
            rate=RequestRate.of_minute(settings.server_rate),
            address_rate=RequestRate.of_minute(ADDRESS_FACTOR * settings.server_rate),
            require_auth=settings.require_auth,
            hosts=hosts,
            secrets=tuple(dicast.secrets()),
            recent_state=RecentState(lambda: read_shared(dicast.store_url, dicast.keys)),
        )

    def masked(self, text: str) -> str:
        """Return a text with all secrets masked, and without the folder of the uploads."""
        text = text.replace(f"{self.uploads.folder}/", "")
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text

    def record(
        self, claims: Claims, action: str, object: str, outcome: str = "done", details: Mapping[str, Any] | None = None
    ) -> None:
        """Add a line to the audit log, under the subject of these claims."""
        self.audit.record(claims.subject, action, object, outcome, {"token": claims.id, **(details or {})})


def parts_of(request: Request) -> Parts:
    """Return the parts of the server that answers this request."""
    parts: Parts = request.app.state.parts
    return parts


async def _given_parts(request: Request) -> Parts:  # a plain function would wait for a thread
    return parts_of(request)


GivenParts = Annotated[Parts, Depends(_given_parts)]
