"""`dicast serve`: runs the HTTP interface at an address, until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from redis.exceptions import RedisError
from uvicorn.protocols.http.h11_impl import H11Protocol

from dicast.app.access.store_users import StoreUsersUnavailable
from dicast.app.application import Dicast
from dicast.app.server.guards import LOOPBACK_NAMES, is_loopback
from dicast.app.server.interface import create_server
from dicast.config.settings import SettingsError
from dicast.errors import DicastError
from dicast.workers.system.supervision import supervised_thread

logger = logging.getLogger(__name__)

HEADERS_S = 15.0


class TimeoutProtocol(H11Protocol):
    """uvicorn's protocol, which closes a connection if no complete request headers arrive within `HEADERS_S` after its
    beginning or after the last answer.

    uvicorn waits for request headers without end, so that a client that opens connections and sends nothing, or one
    byte now and then, could lock out everybody else.
    """

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._late is not None:
            self._late.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait()

    def _wait(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = self.loop.call_later(HEADERS_S, self._give_up)

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


STOP_S = 10
"""How long open answers may take once the server is stopped; event streams end at once."""
CONNECTIONS_MAX = 2048

SILENT_S = 30.0
USERS_EVERY_S = 2.0
SETTLE_EVERY_S = 10.0
BACKLOG = 2048


class AddressUnavailable(DicastError, OSError):
    """The server cannot listen at that address."""

    problem = "wrong-setting"


def check(dicast: Dicast, host: str) -> None:
    """Raise `SettingsError` for a server that would let everybody in, or that could not verify any token."""
    settings = dicast.settings
    if not settings.require_auth and not is_loopback(host):
        raise SettingsError(
            f"DICAST_REQUIRE_AUTH=false is for a loopback address alone, and DICAST_SERVER_HOST is {host!r}"
        )
    if settings.require_auth and not dicast.token_secrets:
        raise SettingsError(
            "DICAST_TOKEN_SECRET must be set where tokens are required: 32 bytes or more, the same for all servers; "
            "or DICAST_REQUIRE_AUTH=false, on a loopback address"
        )


def configured(dicast: Dicast, host: str) -> uvicorn.Config:
    """Return uvicorn's configuration for this installation. Raises `SettingsError`."""
    check(dicast, host)
    listed_names = (dicast.settings.server_names or "").split(",")
    names = (
        LOOPBACK_NAMES | {host.lower().strip("[]")} | {name.strip().lower() for name in listed_names if name.strip()}
    )
    return uvicorn.Config(
        create_server(dicast, names if is_loopback(host) else None),
        log_config=None, access_log=False, server_header=False, proxy_headers=False,
        timeout_graceful_shutdown=STOP_S, timeout_keep_alive=round(HEADERS_S), limit_concurrency=CONNECTIONS_MAX,
        lifespan="off", ws="none", http=TimeoutProtocol,
    )  # fmt: skip


def listening(host: str, port: int) -> socket.socket:
    """Return a listening socket. The kernel ends a connection whose client takes nothing for `SILENT_S`: else a client
    could hold its connection, and what is buffered for it, for ever. Raises `AddressUnavailable`."""
    try:
        family, *_, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise AddressUnavailable(f"cannot listen at {host}, port {port}: {error.strerror or error}") from None
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * SILENT_S))
    return listener


@contextmanager
def users_kept(dicast: Dicast) -> Iterator[None]:
    """Keep the store's users for nodes as recorded, inside the context: the store loses them in a fail-over or a
    restart. Several servers may do so at once."""
    stopped = threading.Event()

    def keep() -> None:
        while not stopped.wait(USERS_EVERY_S):
            try:
                dicast.membership.reconcile()
            except StoreUsersUnavailable as error:
                logger.warning("%s", error)
                return
            except RedisError as error:
                logger.warning("the store's users could not be reconciled: %s", type(error).__name__)

    if dicast.token_secrets:
        thread = supervised_thread("store users", keep, give_up=_given_up)
        thread.start()
    try:
        yield
    finally:
        stopped.set()


@contextmanager
def counts_settled(dicast: Dicast) -> Iterator[None]:
    """Sum up the counts of the audit log soon after each minute, inside the context, even if nothing more happens.
    Several servers may do so at once."""
    stopped = threading.Event()

    def settle() -> None:
        while not stopped.wait(SETTLE_EVERY_S):
            try:
                dicast.audit.settle()
            except RedisError as error:
                logger.warning("the audit log's counts could not be summed up: %s", type(error).__name__)

    thread = supervised_thread("audit counts", settle, give_up=_given_up)
    thread.start()
    try:
        yield
    finally:
        stopped.set()


def _given_up(name: str) -> None:
    logger.error("%s: the server's thread fails again and again, and is not started any more", name)


def serve(dicast: Dicast, host: str, port: int, announce: Callable[[str], None] | None = None) -> None:
    """Serve until SIGINT or SIGTERM. The address is passed to `tell`, for an interactive user, or else logged. Raises
    `SettingsError` or `AddressUnavailable`."""
    config = configured(dicast, host)
    with listening(host, port) as listener, users_kept(dicast), counts_settled(dicast):
        name = host if ":" not in host else f"[{host.strip('[]')}]"
        where = f"http://{name}:{listener.getsockname()[1]}"
        if announce is not None:
            announce(f"Serving at {where}  (Ctrl-C ends it)")
        else:
            logger.info("serving at %s", where)
        uvicorn.Server(config).run(sockets=[listener])
