"""The HTTP interface as one application: its routes, their OpenAPI description, errors and headers.

`create_server` builds it, and `serve` runs it at an address until it is stopped, for `dicast serve`.

The files of the page, `/` and `/page/{file}`, are read from their folder once, at the first request.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import uvicorn
from fastapi import FastAPI, Header
from fastapi import Path as InPath
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema
from redis.exceptions import RedisError
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from dicast.app.access.scopes import Claims
from dicast.app.access.store_users import StoreUsersUnavailable
from dicast.app.application import Dicast
from dicast.app.domain.job import EvaluationJob
from dicast.app.server import page, problems
from dicast.app.server.errors import PathNotFound
from dicast.app.server.guards import LOOPBACK_NAMES, guarded_router, is_loopback, needs, needs_of
from dicast.app.server.parts import GivenParts, Parts
from dicast.app.server.problems import SafeHeaders
from dicast.app.server.routes import jobs, nodes, overview, pools, rating, results
from dicast.config.settings import SettingsError
from dicast.errors import DicastError
from dicast.workers.system.supervision import supervised_thread

page_router = guarded_router("page")

KINDS: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}  # fmt: skip
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Only files of this server can run as scripts, and no text becomes markup, even by mistake."""

Everybody = Annotated[Claims, needs(rate=0)]
IfNoneMatch = Annotated[str | None, Header(alias="if-none-match", max_length=200)]
_FILE = {"schema": {"type": "string"}}


class _File(NamedTuple):
    content: bytes
    kind: str
    mark: str


@cache
def files() -> Mapping[str, _File]:
    """Return the page's files by name."""
    contents = {}
    for path in sorted(Path(page.__file__).parent.iterdir()):
        if path.suffix in KINDS and path.is_file():
            content = path.read_bytes()
            mark = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
            contents[path.name] = _File(content, KINDS[path.suffix], mark)
    return contents


@page_router.get("/", response_class=Response, responses={200: {"content": {"text/html": _FILE}}, 304: {}})
def show_page(parts: GivenParts, _: Everybody, etag: IfNoneMatch = None) -> Response:
    """Serve the page. It contains whether a token is needed, and nothing else about this installation."""
    template = files()["index.html"]
    auth = b"required" if parts.require_auth else b"none"
    content = template.content.replace(b'data-auth=""', b'data-auth="' + auth + b'"')
    return _respond(_File(content, template.kind, f'{template.mark[:-1]}-{auth.decode()}"'), etag)


@page_router.get(
    "/page/{file}", response_class=Response,
    responses={200: {"content": {kind.partition(";")[0]: _FILE for kind in KINDS.values()}}, 304: {}},
)  # fmt: skip
def show_file(
    _: Everybody, file: Annotated[str, InPath(max_length=60, pattern=r"^[a-z-]+\.[a-z]+$")], etag: IfNoneMatch = None
) -> Response:
    """Serve a file of the page."""
    page_file = files().get(file)
    if page_file is None:
        raise PathNotFound("the page has no such file")
    return _respond(page_file, etag)


def _respond(file: _File, etag: str | None) -> Response:
    headers = {"ETag": file.mark, "Cache-Control": "no-cache", "Content-Security-Policy": POLICY}
    if etag == file.mark:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.kind, headers=headers)


ROUTERS = (
    jobs.router, results.router, rating.router, pools.router, nodes.router, overview.router, overview.session_router,
    overview.health_router, page_router,
)  # fmt: skip

DESCRIPTION = "Panels of LLM judges: jobs, their results, pools and nodes. Errors are problems as RFC 9457 has them."


def create_server(dicast: Dicast, hosts: frozenset[str] | None = None) -> FastAPI:
    """Return the interface of an installation. `hosts` are the names under which it may be reached; None: any.

    The store is connected to with the first request that needs it.
    """
    server = FastAPI(
        title="Dicast", version=overview.VERSION, docs_url=None, redoc_url=None, openapi_url=None,
        redirect_slashes=False,
    )  # fmt: skip
    server.state.parts = Parts.for_server(dicast, hosts)
    # As they are: `include_router` would make them anew, each with its first request, and in several threads at once.
    server.router.routes.extend(routes())
    problems.install(server)
    server.add_middleware(SafeHeaders)
    server.openapi = lambda: _describe(server)  # type: ignore[method-assign]  # as FastAPI's documentation has it
    return server


def routes() -> Iterator[APIRoute]:
    """Yield every route of the interface."""
    for router in ROUTERS:
        for route in router.routes:
            assert isinstance(route, APIRoute)
            yield route


def _describe(server: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI description, made once: FastAPI's, with the scopes of each route, and the models that FastAPI
    does not find in the routes."""
    if server.openapi_schema is None:
        description = get_openapi(
            title=server.title, version=server.version, routes=server.routes, description=DESCRIPTION
        )
        _, models = models_json_schema(
            [(EvaluationJob, "validation"), (problems.Problem, "serialization")],
            ref_template="#/components/schemas/{model}",
        )
        components = description.setdefault("components", {})
        components.setdefault("schemas", {}).update(models["$defs"])
        if server.state.parts.require_auth:
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}
            _say_scopes(description["paths"])
        server.openapi_schema = description
    return server.openapi_schema


def _say_scopes(paths: dict[str, Any]) -> None:
    for route in routes():
        scopes = needs_of(route.dependant).scopes
        for method in (route.methods or ()) if route.include_in_schema else ():
            paths[route.path_format][method.lower()]["security"] = [{"token": [scope]} for scope in scopes]


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
    """Serve until SIGINT or SIGTERM. The address is passed to `announce`, for an interactive user, or else logged.
    Raises `SettingsError` or `AddressUnavailable`."""
    config = configured(dicast, host)
    with listening(host, port) as listener, users_kept(dicast), counts_settled(dicast):
        name = host if ":" not in host else f"[{host.strip('[]')}]"
        where = f"http://{name}:{listener.getsockname()[1]}"
        if announce is not None:
            announce(f"Serving at {where}  (Ctrl-C ends it)")
        else:
            logger.info("serving at %s", where)
        uvicorn.Server(config).run(sockets=[listener])
