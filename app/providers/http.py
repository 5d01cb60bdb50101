"""HTTP for all calls: bounded bodies, many connections, no redirects, nothing taken from the host's environment.

Connections are aiohttp's, also where a call goes through an SDK: with thousands of open connections they take a third
of the CPU time of httpx2's own pool, which looks at every connection for each request.
"""

from __future__ import annotations

import contextlib
import functools
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, Self

import aiohttp
import httpx2
import orjson
import yarl
from aiohttp.abc import AbstractStreamWriter
from multidict import CIMultiDict, istr

from dicast.app.providers.base import Transit
from dicast.workers.policy.headers import is_about_limits

NO_KEY = "none"
"""Sent where a pool has no key: the SDKs insist on one, compatible servers ignore it."""

MAX_CONNECTIONS = 20_000
"""A bound against mistakes; the pool's limit is the real one. (By default aiohttp would silently stop at 100.)"""

KEEPALIVE_S = 4.0
"""Shorter than the 5 s after which uvicorn, hence vLLM and LiteLLM, closes an idle connection under a new request."""

CONNECT_TIMEOUT_S = 15.0

_MAX_HEADERS = 64
_MAX_HEADER_CHARS = 200
# Body-related headers describe the bytes on the wire. The content type stays out because the SDKs decode error texts
# with whatever charset it names, and Python knows charsets that raise.
_WIRE_HEADERS = {b"content-encoding", b"content-length", b"content-type", b"transfer-encoding"}


class ResponseTooLarge(httpx2.RequestError):
    """The unpacked body of a response exceeded the limit; the rest was not read."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A complete response with its body unpacked. `content_type` is the header as it was received."""

    status_code: int
    headers: httpx2.Headers
    content: bytes
    content_type: str

    @classmethod
    def from_httpx(cls, response: httpx2.Response) -> Self:
        """Build it from a response of `BoundedBodies`."""
        content_type = response.extensions.get("content_type", "")
        return cls(response.status_code, response.headers, response.content, content_type)

    @property
    def is_success(self) -> bool:
        """Whether its status is one of 200 to 299."""
        return 200 <= self.status_code < 300


class OneShotBody(aiohttp.BytesPayload):
    """A request body that is released as soon as it has been written, since a call stays open for seconds after that
    and aiohttp repeats no POST. `transit.written` is set when writing begins, which is after the connection was
    made."""

    def __init__(self, value: bytes, transit: Transit) -> None:
        super().__init__(value)
        self._transit = transit

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Raises RuntimeError the second time."""
        if self._consumed:
            raise RuntimeError("the body has been sent")
        self._consumed = self._transit.written = True
        await super().write_with_length(writer, content_length)
        self._value = b""


class Connections:
    """Connections of one provider on one event loop, opened as calls need them. `trust_env`: through the proxy that the
    environment names, and with its certificates."""

    def __init__(self, *, max_response_bytes: int, timeout_s: float, trust_env: bool = False) -> None:
        self._max_response_bytes = max_response_bytes
        self._trust_env = trust_env
        bounds = timeouts(timeout_s)
        self._timeout = aiohttp.ClientTimeout(sock_connect=bounds.connect, sock_read=bounds.read, connect=bounds.pool)
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: yarl.URL, headers: CIMultiDict[str], body: OneShotBody) -> HttpResponse:
        """Send a body and return the whole response. Raises aiohttp's errors, `ResponseTooLarge` and
        `httpx2.DecodingError`."""
        return await self.request("POST", url, headers, body)

    async def request(self, method: str, url: yarl.URL, headers: CIMultiDict[str], body: Any = None) -> HttpResponse:
        """Make any request and return the whole response. Raises as `post` does."""
        async with self._send(method, url, headers, body) as came:
            received = httpx2.Headers(came.raw_headers)
            content = await _within(_unpacked(came, received), self._max_response_bytes, is_success=came.ok)
            return HttpResponse(came.status, received, content, received.get("content-type", ""))

    @contextlib.asynccontextmanager
    async def stream(
        self, url: yarl.URL, headers: CIMultiDict[str]
    ) -> AsyncIterator[tuple[HttpResponse, AsyncIterator[bytes]]]:
        """Get an address, and return the response with its content yet to come, unpacked, in pieces of at most 1 MiB;
        that of an error is already there. Raises as `post` does."""
        async with self._send("GET", url, headers, None) as came:
            received = httpx2.Headers(came.raw_headers)
            pieces = _unpacked(came, received)
            content = b"" if came.ok else await _within(pieces, self._max_response_bytes, is_success=False)
            yield HttpResponse(came.status, received, content, received.get("content-type", "")), pieces

    def _send(self, method: str, url: yarl.URL, headers: CIMultiDict[str], body: Any) -> Any:
        if self._session is None:
            secured = tls(self._trust_env) if url.scheme == "https" else True  # one provider has one address
            connector = aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=KEEPALIVE_S, ssl=secured)
            self._session = aiohttp.ClientSession(connector=connector, trust_env=self._trust_env)
        return self._session.request(
            method, url, data=body, headers=headers, allow_redirects=False, auto_decompress=False, timeout=self._timeout
        )

    async def close(self) -> None:
        """End all connections."""
        if self._session is not None:
            await self._session.close()


def _unpacked(came: aiohttp.ClientResponse, received: httpx2.Headers) -> AsyncIterator[bytes]:
    pieces: AsyncIterator[bytes] = came.content.iter_any()
    if "content-encoding" in received:
        return httpx2.Response(came.status, headers=received, stream=_Stream(pieces)).aiter_bytes()
    return pieces


class _Stream(httpx2.AsyncByteStream):
    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._pieces:
            yield piece


async def _within(pieces: AsyncIterator[bytes], most: int, *, is_success: bool) -> bytes:
    """Join all pieces. If they exceed `most` bytes, return b"" for an error and raise `ResponseTooLarge` for a
    success."""
    body = bytearray()
    async for piece in pieces:
        body += piece
        if len(body) > most:
            if is_success:
                raise ResponseTooLarge(f"the answer is larger than {most} bytes")
            return b""
    return bytes(body)


class BoundedBodies(httpx2.AsyncClient):
    """Mixed into an SDK's client class: `send` reads every body itself and gives up beyond `max_response_bytes`.

    Holds for errors (their status is kept, the body dropped) and for compressed bodies; memory stays within the limit
    plus a 1 MiB decoding piece. Responses come back complete, without content type and encoding; the type received is
    in `extensions["content_type"]`.
    """

    def __init__(self, *, max_response_bytes: int, timeout_s: float, trust_env: bool) -> None:
        self._max_response_bytes = max_response_bytes
        super().__init__(
            timeout=timeouts(timeout_s),
            limits=httpx2.Limits(
                max_connections=MAX_CONNECTIONS,
                max_keepalive_connections=MAX_CONNECTIONS,
                keepalive_expiry=KEEPALIVE_S,
            ),
            follow_redirects=False,
            trust_env=trust_env,
            verify=tls(trust_env),
        )

    async def send(self, request: httpx2.Request, *, stream: bool = False, **kwargs: Any) -> httpx2.Response:
        response = await super().send(request, stream=True, **kwargs)
        try:
            body = await _within(response.aiter_bytes(), self._max_response_bytes, is_success=response.is_success)
        finally:
            await response.aclose()
        return httpx2.Response(
            response.status_code,
            headers=[pair for pair in response.headers.raw if pair[0].lower() not in _WIRE_HEADERS],
            content=body,
            request=request,
            extensions={**response.extensions, "content_type": response.headers.get("content-type", "")},
        )


def timeouts(timeout_s: float) -> httpx2.Timeout:
    """Return the bounds on silence, s; the one for connecting is shorter."""
    return httpx2.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S))


@functools.cache
def tls(trust_env: bool) -> ssl.SSLContext:
    """Return a TLS context, made once for each process: loading the certificate authorities takes 50 ms."""
    return httpx2.create_ssl_context(trust_env=trust_env)


def rate_limit_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers about limits and their times, with names in lower case, bounded in number and length."""
    selected: dict[str, str] = {}
    for name, value in headers.items():
        lower = name.lower()
        if is_about_limits(lower) and len(selected) < _MAX_HEADERS:
            selected[lower] = value[:_MAX_HEADER_CHARS]
    return selected


Body = dict[str, Any]
CONTENT_LENGTH = istr("content-length")


class Post(Protocol):
    """Sends one body to a provider.

    It receives the response as the SDK would, or through the SDK.
    """

    async def send(self, body: Body, transit: Transit) -> HttpResponse:
        """Send the body and return the response, whatever its status. Without a response, raises the errors of the SDK,
        httpx2 and aiohttp."""
        ...

    async def close(self) -> None: ...


class SdkClient(Protocol):
    """What OpenAI's and Anthropic's clients have in common."""

    async def post(self, path: str, *, cast_to: Any, body: Any) -> Any: ...
    async def close(self) -> None: ...


class SdkPost:
    """Sends each call through the SDK. `status_error` is what it raises for a status that is no success."""

    def __init__(self, sdk: SdkClient, path: str, status_error: type[Exception]) -> None:
        self._sdk, self._path, self._status_error = sdk, path, status_error

    async def send(self, body: Body, transit: Transit) -> HttpResponse:
        """See `Post`. The SDK does not tell when it writes, so `transit.written` is True from the start."""
        try:
            response: httpx2.Response = await self._sdk.post(self._path, cast_to=httpx2.Response, body=body)
        except self._status_error as error:
            response = error.response  # type: ignore[attr-defined]
        return HttpResponse.from_httpx(response)

    async def close(self) -> None:
        """End its connections."""
        await self._sdk.close()


Build = Callable[[str], Awaitable[httpx2.Request]]
"""Makes the request that the SDK would send for a call of this model; its body does not matter."""


class DirectPost:
    """Sends each call as the SDK would, without its overhead.

    The SDK decides address and headers of a call. Building a request and a response takes it more CPU time than all
    else that a call costs, though only the body differs from call to call. `DirectPost` has one request built for each
    model, which is never sent, and sends all bodies of that model in the same way. `python -m lab.bench.calls` measures
    it.
    """

    def __init__(self, build: Build, connections: Connections) -> None:
        self._build, self._connections = build, connections
        self._prepared: dict[str, tuple[yarl.URL, CIMultiDict[str]]] = {}

    async def send(self, body: Body, transit: Transit) -> HttpResponse:
        """See `Post`."""
        transit.written = False
        model = body["model"]
        if model not in self._prepared:  # Azure's address names the model
            request = await self._build(model)
            # `istr` caches the lower case of a name, so that calls need not compute it.
            names = CIMultiDict((istr(name), value) for name, value in request.headers.items())
            self._prepared[model] = yarl.URL(str(request.url)), names
        url, prepared = self._prepared[model]
        content, headers = OneShotBody(dumped(body), transit), prepared.copy()
        headers[CONTENT_LENGTH] = str(content.size)
        return await self._connections.post(url, headers, content)

    async def close(self) -> None:
        """End its connections."""
        await self._connections.close()


def built_by(sdk: SdkClient, path: str) -> Build:
    """Return a builder that uses the SDK itself, which was made with an `UnsentClient`."""
    return partial(_built, sdk, path)


async def _built(sdk: SdkClient, path: str, model: str) -> httpx2.Request:
    try:
        await sdk.post(path, cast_to=httpx2.Response, body={"model": model})
    except Exception as error:  # one SDK wraps what its client raises, the other does not
        unsent = error if isinstance(error, NotSent) else error.__cause__
        if not isinstance(unsent, NotSent):
            raise
        request = unsent.request
    return request


class NotSent(Exception):
    """A request that was built and not sent."""

    def __init__(self, request: httpx2.Request) -> None:
        super().__init__()
        self.request = request


class UnsentClient(httpx2.AsyncClient):
    """Sends nothing: it only builds requests."""

    def __init__(self, timeout: httpx2.Timeout) -> None:
        super().__init__(timeout=timeout, transport=httpx2.AsyncBaseTransport(), trust_env=False)

    async def send(self, request: httpx2.Request, **_: Any) -> httpx2.Response:
        """Raises `NotSent`."""
        raise NotSent(request)


def dumped(body: Body) -> bytes:
    """Serialise a body as the SDKs do. Raises `UnicodeEncodeError` for lone surrogates, as they do."""
    try:
        return orjson.dumps(body)
    except TypeError:  # a number or a text that orjson refuses
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
