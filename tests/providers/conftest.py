from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from dicast.app.providers.anthropic import AnthropicProvider
from dicast.app.providers.base import ChatRequest, ProviderFailure
from dicast.app.providers.openai import OpenAIProvider
from dicast.config.pools import PoolSpec

KEY = "sk-canary-0123456789abcdef"
DIALECTS = ("openai", "anthropic")

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["score", "argument", "cited_evidence"],
    "properties": {
        "score": {"type": "integer", "minimum": 3, "maximum": 5},
        "argument": {"type": "string"},
        "cited_evidence": {"type": "array", "items": {"type": "string"}},
    },
}

AnyProvider = OpenAIProvider | AnthropicProvider


def chat(user: str = "Judge this.", **changes: Any) -> ChatRequest:
    return replace(ChatRequest(model="judge", system="You are a judge.", user=user, max_tokens=200), **changes)


def make(dialect: str, base_url: str, *, max_response_bytes: int = 100_000, **changes: Any) -> AnyProvider:
    options: dict[str, Any] = {"structured_channel": "tool" if dialect == "anthropic" else "json_schema", **changes}
    timeout_s = options.pop("timeout_s", 10.0)
    key = options.pop("key", KEY)
    spec = PoolSpec(name="p", provider="simulated", dialect=dialect, model="judge", **options)
    build = AnthropicProvider if dialect == "anthropic" else OpenAIProvider
    return build(spec, api_key=key, base_url=base_url, timeout_s=timeout_s, max_response_bytes=max_response_bytes)


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["direct", "sdk"])
def calls(request: pytest.FixtureRequest) -> str:
    """How calls are sent."""
    return str(request.param)


@pytest.fixture
async def provider_at(calls: str) -> AsyncIterator[Callable[..., AnyProvider]]:
    """A factory of providers that are closed after the test."""
    made: list[AnyProvider] = []

    def build(dialect: str, base_url: str, **options: Any) -> AnyProvider:
        made.append(make(dialect, base_url, **{"calls": calls, **options}))
        return made[-1]

    yield build
    for provider in made:
        await provider.close()


async def failure_of(provider: Any, request: Any = None) -> ProviderFailure:
    with pytest.raises(ProviderFailure) as caught:
        await provider.complete(request or chat())
    return caught.value


async def until(condition: Any, deadline_s: float = 5.0) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110  the condition is another server's state
            await asyncio.sleep(0.01)


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class RawServer:
    """Accepts HTTP requests and answers with whatever bytes a test wants."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.requests: list[bytes] = []
        self.hung_up = asyncio.Event()
        self.base_url = ""

    async def __aenter__(self) -> RawServer:
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            lengths = (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            length = next(lengths, 0)  # a GET has none
            self.requests.append(head + await reader.readexactly(length))
            await self._script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.hung_up.set()
        finally:
            with contextlib.suppress(ConnectionError):
                writer.close()
                await writer.wait_closed()


def answer(
    body: bytes = b"", *, status: str = "200 OK", headers: tuple[str, ...] = ("content-type: application/json",)
) -> Script:
    """One complete response, then the connection closes."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
    return sends("\r\n".join(lines).encode("latin-1") + body)


def sends(raw: bytes) -> Script:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()

    return script


def good_body(dialect: str, text: str = '{"score": 5}') -> dict[str, Any]:
    if dialect == "openai":
        message = {"role": "assistant", "content": text}
        return {
            "model": "judge-1",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3},
        }
    return {
        "type": "message",
        "model": "judge-1",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 7, "output_tokens": 3},
    }
