"""Reports every error as a problem (RFC 9457): a type for programs, a title, a sentence; never a traceback or a secret.

The type is `urn:dicast:problem:` and the error's `problem`. docs/http.md lists them with their statuses.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from kombu.exceptions import OperationalError
from pydantic import BaseModel, Field
from redis.exceptions import RedisError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dicast.app.access.scopes import TokenRejected
from dicast.app.domain.refusals import InvalidJob
from dicast.app.domain.text import printable
from dicast.app.server.parts import parts_of
from dicast.errors import DicastError

logger = logging.getLogger(__name__)

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer that does not set them itself."""


class SafeHeaders:
    """Adds `HEADERS` to every answer, and ends the connection after an answer that is sent before the whole body has
    arrived: else the rest of the body, which may be endless, would be read only to be thrown away.

    The headers keep a browser from guessing types, framing, caching or running anything.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_headers = Headers(scope=scope)
        whole = "transfer-encoding" not in request_headers and request_headers.get("content-length", "0") == "0"

        async def received() -> Message:
            nonlocal whole
            message = await receive()
            whole = whole or not message.get("more_body", False)
            return message

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if not whole:
                    headers["Connection"] = "close"
            await send(message)

        await self._app(scope, received, sent)


MEDIA_TYPE = "application/problem+json"
TYPE = "urn:dicast:problem:"
DETAIL_CHARS = 2000
MISTAKES_SHOWN = 20
AGAIN = {"Retry-After": "2"}

STATUSES: Mapping[str, int] = {
    "refused": 400, "request-refused": 422, "unreadable-job": 400, "bad-job-id": 404,
    "token-refused": 401, "not-allowed": 403, "file-refused": 403, "foreign-request": 403,
    "unknown-job": 404, "no-results": 404, "unknown-pool": 404, "unknown-node": 404, "not-found": 404,
    "method-not-allowed": 405, "media-type-refused": 415, "not-acceptable": 406, "body-too-slow": 408,
    "job-conflict": 409, "rating-not-done": 409, "texts-away": 409, "job-not-ended": 409, "node-busy": 409,
    "node-leaves": 409, "run-changed": 409, "report-changed": 409, "runs-differ": 409, "no-added-ratings": 409,
    "job-lost": 410,
    "body-too-large": 413,
    "job-refused": 422, "rating-refused": 422, "no-sample": 422, "invalid-job": 422, "unreadable-items": 422,
    "override-refused": 422,
    "idempotency-key-reused": 422, "too-many-requests": 429,
    "internal": 500, "report-damaged": 500,
    "too-many-streams": 503, "store-away": 503, "broker-away": 503, "results-away": 503, "not-ready": 503,
    "store-users-refused": 503, "uploads-full": 507,
}  # fmt: skip
"""The status codes by `problem`; any other problem is the server's own error: 500."""
_OF_STATUS = {
    404: "not-found", 405: "method-not-allowed", 406: "not-acceptable", 408: "body-too-slow", 413: "body-too-large",
    415: "media-type-refused",
}  # fmt: skip


class Problem(BaseModel):
    """RFC 9457."""

    type: str = Field(examples=[TYPE + "unknown-job"])
    title: str
    status: int
    detail: str
    errors: list[str] = Field(default_factory=list, description="one line a mistake")


def problem(
    status: int, slug: str, detail: str, errors: list[str] | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a problem as a response. The detail, which may contain foreign text, becomes one printable line."""
    content = Problem(
        type=TYPE + slug,
        title=slug.replace("-", " ").capitalize(),
        status=status,
        detail=printable(detail, DETAIL_CHARS),
        errors=[printable(line, DETAIL_CHARS) for line in errors or ()],
    )
    body = orjson.dumps(content.model_dump(exclude_defaults=True))
    return Response(body, status, headers=headers, media_type=MEDIA_TYPE)


def problem_of(error: DicastError, detail: str | None = None) -> Response:
    """Return the response to an expected error."""
    status = STATUSES.get(error.problem, 500)
    headers = {}
    if isinstance(error, TokenRejected):
        status = 403 if error.reason in ("scope", "node") else 401
        kind = "insufficient_scope" if status == 403 else "invalid_token"
        error_attribute = "" if error.reason == "missing" else f', error="{kind}"'
        headers["WWW-Authenticate"] = f'Bearer realm="dicast"{error_attribute}'
    if (wait_s := getattr(error, "wait_s", None)) is not None:
        headers["Retry-After"] = str(max(1, round(wait_s + 0.5)))
    lines = error.lines if isinstance(error, InvalidJob) else None
    return problem(status, error.problem, str(error) if detail is None else detail, lines, headers)


def install(server: FastAPI) -> None:
    """Register handlers that answer all errors of this server as problems."""
    server.add_exception_handler(DicastError, _foreseen)
    server.add_exception_handler(HTTPException, _http)
    server.add_exception_handler(RequestValidationError, _invalid)
    server.add_exception_handler(RedisError, _store_away)
    server.add_exception_handler(OperationalError, _broker_away)
    server.add_exception_handler(Exception, _unforeseen)


def _foreseen(request: Request, error: Exception) -> Response:
    assert isinstance(error, DicastError)
    if error.problem == "results-away":  # its message names folders
        return problem_of(error, "the files of this job cannot be seen from this server")
    if STATUSES.get(error.problem, 500) >= 500:
        logger.error("%s %s: %s", request.method, request.url.path, error)
    return problem_of(error, parts_of(request).masked(str(error)))


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    slug = _OF_STATUS.get(error.status_code, "request-refused" if error.status_code < 500 else "internal")
    headers = {"Allow": _allowed(request)} if error.status_code == 405 else error.headers
    return problem(error.status_code, slug, error.detail or HTTPStatus(error.status_code).phrase, headers=headers)


def _allowed(request: Request) -> str:
    """Return all methods of a path for the `Allow` header; Starlette names those of the first route only."""
    methods = set[str]()
    for route in request.app.router.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods
    return ", ".join(sorted(methods))


def _invalid(_: Request, error: Exception) -> Response:
    """Answer a validation error, without the given values: one may be a secret in the wrong place."""
    assert isinstance(error, RequestValidationError)
    lines = [_mistake(mistake) for mistake in error.errors()[:MISTAKES_SHOWN]]
    return problem(422, "request-refused", lines[0] if lines else "the request cannot be understood", lines)


def _mistake(mistake: Mapping[str, Any]) -> str:
    place = ".".join(str(part) for part in mistake["loc"])
    return f"{place}: {mistake['msg'][:1].lower()}{mistake['msg'][1:]}"


def _store_away(request: Request, error: Exception) -> Response:
    logger.warning("%s %s: the store does not answer: %s", request.method, request.url.path, type(error).__name__)
    return problem(503, "store-away", "the store does not answer", headers=AGAIN)


def _broker_away(request: Request, error: Exception) -> Response:
    logger.warning("%s %s: the broker does not answer: %s", request.method, request.url.path, type(error).__name__)
    return problem(503, "broker-away", "the broker does not answer", headers=AGAIN)


def _unforeseen(request: Request, error: Exception) -> Response:
    name = secrets.token_hex(4)
    # Starlette raises it again after the answer, and the server's log has it whole.
    logger.error("%s %s: %s (%s)", request.method, request.url.path, type(error).__name__, name)
    return problem(
        500, "internal", f"something went wrong here; the server's log has more under {name}", headers=HEADERS
    )
