"""Sends the body of a call to the provider and receives the response, as the SDK would or through the SDK.

The SDK decides address and headers of a call. Building a request and a response takes it more CPU time than all else
that a call costs, though only the body differs from call to call. `DirectPost` has one request built for each model,
which is never sent, and sends all bodies of that model in the same way. `python -m lab.bench.calls` measures it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

import httpx2
import orjson
import yarl
from multidict import CIMultiDict, istr

from dicast.app.providers.base import Transit
from dicast.app.providers.http import Connections, HttpResponse, OneShotBody

Body = dict[str, Any]
CONTENT_LENGTH = istr("content-length")


class Post(Protocol):
    """Sends one body to a provider."""

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
    """Sends each call as the SDK would, without its overhead."""

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
        content, headers = OneShotBody(_dumped(body), transit), prepared.copy()
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


def _dumped(body: Body) -> bytes:
    """Serialise a body as the SDKs do. Raises `UnicodeEncodeError` for lone surrogates, as they do."""
    try:
        return orjson.dumps(body)
    except TypeError:  # a number or a text that orjson refuses
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
