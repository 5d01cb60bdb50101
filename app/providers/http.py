"""What the SDKs' HTTP clients get from us: bounded bodies, many connections, no redirects, no surprises from the host.

Both SDKs are given their own aiohttp transport. It keeps thousands of connections open at a third of the CPU of the
default one, which rescans its connection pool at each request.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Mapping
from typing import Any

import httpx2

from dicast.workers.policy.headers import is_about_limits

NO_KEY = "none"
"""Sent where a pool has no key: the SDKs insist on one, compatible servers ignore it."""

MAX_CONNECTIONS = 20_000
"""A bound against mistakes; the real one is the pool's limit. (Left out, aiohttp would silently hold calls at 100.)"""

KEEPALIVE_S = 4.0
"""Shorter than the 5 s after which uvicorn, hence vLLM and LiteLLM, closes an idle connection under a new request."""

CONNECT_TIMEOUT_S = 15.0

_MAX_HEADERS = 64
_MAX_HEADER_CHARS = 200
# Body-related headers describe the bytes on the wire. The content type stays out because the SDKs decode error texts
# with whatever charset it names, and Python knows charsets that raise.
_WIRE_HEADERS = {b"content-encoding", b"content-length", b"content-type", b"transfer-encoding"}


class ResponseTooLarge(httpx2.RequestError):
    """The unpacked body of an answer passed the limit; the rest was not read."""


class BoundedBodies(httpx2.AsyncClient):
    """Mixed into an SDK's client class: `send` reads every body itself and gives up beyond `max_response_bytes`.

    Holds for errors (their status is kept, the body dropped) and for compressed bodies; memory stays within the limit
    plus a 1 MiB decoding piece. Responses come back complete, without content type and encoding; the type received is
    in `extensions["content_type"]`.
    """

    def __init__(self, *, max_response_bytes: int, timeout_s: float, trust_env: bool) -> None:
        self._max_response_bytes = max_response_bytes
        super().__init__(
            timeout=httpx2.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S)),
            limits=httpx2.Limits(
                max_connections=MAX_CONNECTIONS,
                max_keepalive_connections=MAX_CONNECTIONS,
                keepalive_expiry=KEEPALIVE_S,
            ),
            follow_redirects=False,
            trust_env=trust_env,
            verify=_tls(trust_env),
        )

    async def send(self, request: httpx2.Request, *, stream: bool = False, **kwargs: Any) -> httpx2.Response:
        response = await super().send(request, stream=True, **kwargs)
        body = bytearray()
        try:
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > self._max_response_bytes:
                    if response.is_success:
                        raise ResponseTooLarge(f"the answer is larger than {self._max_response_bytes} bytes")
                    body.clear()
                    break
        finally:
            await response.aclose()
        return httpx2.Response(
            response.status_code,
            headers=[pair for pair in response.headers.raw if pair[0].lower() not in _WIRE_HEADERS],
            content=bytes(body),
            request=request,
            extensions={**response.extensions, "content_type": response.headers.get("content-type", "")},
        )


@functools.cache
def _tls(trust_env: bool) -> ssl.SSLContext:
    """Loading the certificate authorities costs 50 ms: once a process, not once a pool."""
    return httpx2.create_ssl_context(trust_env=trust_env)


def rate_limit_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that tell of limits, and when, names in lower case, bounded in number and length."""
    kept: dict[str, str] = {}
    for name, value in headers.items():
        lower = name.lower()
        if is_about_limits(lower) and len(kept) < _MAX_HEADERS:
            kept[lower] = value[:_MAX_HEADER_CHARS]
    return kept
