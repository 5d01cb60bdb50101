"""The guard of every route: it checks who may use it, from where, how often, and with how large a body.

A route declares its requirements by `needs(...)`; a server with a route that does not cannot be made. Everything is
checked before the body is read and before the route itself runs.

A request must not come from another site's page, nor be for another host name (`check`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator
from contextlib import nullcontext
from dataclasses import replace
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import HTTPException
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Message

from dicast.app.access.scopes import Claims, Scope, TokenRejected
from dicast.app.server.errors import ForeignRequest, InvalidRequest, TooManyRequests
from dicast.app.server.parts import Parts, RequestRate, parts_of
from dicast.errors import DicastError

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def is_loopback(host: str) -> bool:
    """Return whether the host is a loopback address or `localhost`."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check(request: Request, hosts: frozenset[str] | None) -> None:
    """Raise `ForeignRequest` for a request that must not be answered.

    On a loopback address a page of any site can reach the server, under a name that resolves there (DNS rebinding):
    only requests for the server's own names are answered. A request that changes something must come from a page of
    this server, or from no page.
    """
    host = request.headers.get("host", "")
    if hosts is not None and _name(host) not in hosts:
        raise ForeignRequest(f"this server is not {host[:100]!r}; DICAST_SERVER_NAMES lists further names of it")
    if request.method in _SAFE:
        return
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise ForeignRequest("the request comes from another site's page")
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
        raise ForeignRequest(f"the request comes from a page of {origin[:100]!r}")


def _name(host: str) -> str:
    """Return the name in a Host header, in lower case, without port, brackets or the root's dot."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


BODY_BYTES = 64 * 1024
PAUSE_S = 20.0
"""How long a body may pause before it is given up."""
BODY_S = 60.0
NOBODY = Claims("nobody", "", frozenset(), 0, 0.0)
LOCAL = Claims("local", "", frozenset(Scope), 0, math.inf)
"""The claims of every caller of a server that requires no tokens."""
_AUDITED_ELSEWHERE = frozenset({"node-busy", "node-leaves"})
"""Problems that the cluster has recorded in the audit log itself."""
_PROBLEM: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "a problem (RFC 9457)",
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}
_UNSAFE = frozenset({"POST", "PATCH", "PUT", "DELETE"})


class Needs:
    """The requirements of a route: a token with one of `scopes`, or no token if there are none; a body of at most
    `body_bytes` (None: as large as an upload may be), complete within `body_s`. `rate` multiplies the usual rate, in
    buckets of its own; at 0 there is no rate limit, and the store is not queried."""

    def __init__(self, *scopes: Scope, body_bytes: int | None, body_s: float, rate: int) -> None:
        self.scopes, self.body_bytes, self.body_s, self.rate = scopes, body_bytes, body_s, rate

    @property
    def takes_turns(self) -> bool:
        """Whether only a few requests of a subject are served at once; not for uploads, which last as long as their
        bodies."""
        return bool(self.scopes) and self.body_bytes is not None

    async def __call__(self, request: Request) -> Claims:  # a plain function would wait for a thread
        claims: Claims = request.state.claims
        return claims


def needs(
    *scopes: Scope, body_bytes: int | None = BODY_BYTES, body_s: float = BODY_S, rate: int = 1
) -> Any:  # fmt: skip
    """Return the dependency that every route has exactly once; it gives the caller's claims. A token with any one of
    these scopes is accepted; a heartbeat token only if the path names its own node."""
    return Depends(Needs(*scopes, body_bytes=body_bytes, body_s=body_s, rate=rate))


def _query_names(dependant: Dependant) -> Iterator[str]:
    """Yield the names of a route's query parameters, those that a model gathers one by one."""
    for field in dependant.query_params:
        kind = field.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from kind.model_fields
        else:
            yield field.alias


class Guarded(APIRoute):
    """A route behind its guard."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle, requirements = super().get_route_handler(), needs_of(self.dependant)
        parameters = set(_query_names(self.dependant))

        async def guarded(request: Request) -> Response:
            request.state.claims = (
                await run_in_threadpool(_admit, request, requirements) if requirements.rate else NOBODY
            )
            if unknown := sorted(set(request.query_params) - parameters):
                raise InvalidRequest(f"query.{unknown[0][:60]}: there is no such parameter here")
            most = parts_of(request).uploads.file_bytes if requirements.body_bytes is None else requirements.body_bytes
            turns = (
                parts_of(request).turns.take_turn(request.state.claims.subject)
                if requirements.takes_turns
                else nullcontext()
            )
            try:
                async with turns:
                    return await handle(_bounded(request, most, requirements.body_s))
            except DicastError as error:
                if error.problem not in _AUDITED_ELSEWHERE and (
                    request.method in _UNSAFE or error.problem == "not-allowed"
                ):
                    await run_in_threadpool(_audit_refusal, request, request.state.claims, error)
                raise

        return guarded


def guarded_router(tag: str) -> APIRouter:
    """Return a router whose routes are guarded, and may answer with problems."""
    return APIRouter(route_class=Guarded, tags=[tag], responses=_PROBLEM)


def needs_of(dependant: Dependant) -> Needs:
    """Return a route's requirements; raises RuntimeError if it does not declare them exactly once."""
    declared = [dependency.call for dependency in dependant.dependencies if isinstance(dependency.call, Needs)]
    if len(declared) != 1:
        raise RuntimeError(f"the route {dependant.path} must say once what it needs, and does {len(declared)} times")
    return declared[0]


def still_admitted(request: Request) -> bool:
    """Return whether the token of a request is still valid, for answers that last long."""
    parts = parts_of(request)
    try:
        _verify_token(request, parts, needs_of(request.scope["route"].dependant))
    except TokenRejected:
        return False
    return True


def _admit(request: Request, requirements: Needs) -> Claims:
    parts = parts_of(request)
    address = request.client.host if request.client else "unknown"
    _count(request, parts, NOBODY, ("address", address, parts.address_rate), requirements.rate)
    try:
        check(request, parts.hosts)
        claims = _verify_token(request, parts, requirements)
        if claims.pools is not None:  # whoever may use a pool may use all its models
            claims = replace(claims, pools=parts.dicast.pools.with_models(claims.pools))
    except DicastError as error:
        _audit_refusal(request, NOBODY, error)
        raise
    if claims.id:
        _count(request, parts, claims, ("token", claims.id, parts.rate), requirements.rate)
    return claims


def _verify_token(request: Request, parts: Parts, requirements: Needs) -> Claims:
    """Verify the token of a request. Raises `TokenRejected`."""
    if not requirements.scopes:
        return NOBODY
    if not parts.require_auth:
        return LOCAL
    token, node, rejection = _bearer(request), request.path_params.get("node", ""), TokenRejected("scope")
    assert parts.tokens is not None, "a server that requires tokens does not start without a secret"
    for scope in requirements.scopes:
        try:
            return parts.tokens.verify(token, scope, node=node)
        except TokenRejected as error:
            rejection = error
            if error.reason != "scope":
                break
    raise rejection


def _bearer(request: Request) -> str | None:
    headers = request.headers.getlist("authorization")
    if not headers:
        return None
    kind, _, token = headers[0].partition(" ")
    return token.strip() if len(headers) == 1 and kind.lower() == "bearer" else ""


def _count(request: Request, parts: Parts, claims: Claims, bucket: tuple[str, str, RequestRate], times: int) -> None:
    """Count a request. Raises `TooManyRequests`; the first refusal of a row is audited, the others are not."""
    kind, whose, rate = bucket
    taken = parts.rates.take(kind if times == 1 else f"{kind}*{times}", whose, rate.times(times))
    if taken.wait_s:
        error = TooManyRequests(kind, taken.wait_s)
        if taken.first:
            _audit_refusal(request, claims, error)
        raise error


def _audit_refusal(request: Request, claims: Claims, error: DicastError) -> None:
    """Record a refusal in the audit log: under the subject's name, also if its token is no longer valid; as a
    stranger's if no token of this installation was shown."""
    parts, address = parts_of(request), request.client.host if request.client else ""
    action, object = f"{request.method} {_template(request)}", request.url.path
    details = {"problem": error.problem, "address": address}
    if isinstance(error, TokenRejected):
        details |= {"reason": error.reason, "subject": error.subject, "token": error.id}
        if error.subject:
            parts.audit.record(error.subject, action, object, "refused", details)
            return
    if claims is NOBODY:
        parts.audit.refuse_stranger(address, action, object, details)
    else:
        parts.record(claims, action, object, "refused", details)


def _template(request: Request) -> str:
    return str(getattr(request.scope.get("route"), "path", request.url.path))


def _bounded(request: Request, most: int, total_s: float) -> Request:
    """Return the request with a body that raises HTTPException when it is too large, or too slow."""
    too_large = HTTPException(413, f"the body may have at most {most:,} bytes")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise too_large
    receive, loop = request.receive, asyncio.get_running_loop()
    received, whole, end_s = 0, False, loop.time() + total_s

    async def bounded() -> Message:
        nonlocal received, whole
        if whole:
            return await receive()  # waits until the client goes
        try:
            async with asyncio.timeout_at(min(end_s, loop.time() + PAUSE_S)):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, "the body did not come in time") from None
        received += len(message.get("body", b""))
        whole = message["type"] != "http.request" or not message.get("more_body", False)
        if received > most:
            raise too_large
        return message

    return Request(request.scope, bounded)
