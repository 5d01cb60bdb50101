"""Anthropic's messages, and servers that speak them.

Structured answers come through one of two channels: `json_schema` (the API's native structured output, where the model
cannot write anything else) or `tool` (a forced tool call, which compatible servers know).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anthropic
import httpx2
import orjson

from dicast.app.providers import exchange
from dicast.app.providers.base import ChatReply, ChatRequest, ImagePart
from dicast.app.providers.exchange import Exchange, MalformedBody, Redactor
from dicast.app.providers.http import (
    NO_KEY,
    BoundedBodies,
    Build,
    Connections,
    DirectPost,
    HttpResponse,
    Post,
    SdkPost,
    UnsentClient,
    built_by,
    rate_limit_headers,
    timeouts,
)
from dicast.config.pools import PoolSpec

DEFAULT_BASE_URL = "https://api.anthropic.com"
PATH = "/v1/messages"

_USAGE = exchange.UsageKeys(
    input=("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"),
    output="output_tokens",
    cached=("cache_read_input_tokens",),
    written=("cache_creation_input_tokens",),
)


class _HttpClient(BoundedBodies, anthropic.DefaultAioHttpClient):
    pass


class AnthropicProvider:
    """Calls one pool through Anthropic's API. `timeout_s` bounds silences; the caller sets the total deadline.

    Calls are sent as the SDK's `post` sends them (app/providers/http.py). Its `messages.create` would send the same
    bodies, but has lost the `temperature` that compatible servers and older models understand.
    """

    def __init__(
        self, spec: PoolSpec, *, api_key: str | None, base_url: str | None, timeout_s: float, max_response_bytes: int
    ) -> None:
        self.structured_output = spec.structured_output
        self.nonce_in_schema = spec.nonce_in_schema
        self._forced_tool = spec.structured_channel == "tool"
        key, url = api_key or NO_KEY, base_url or spec.base_url or DEFAULT_BASE_URL
        self._spec, self._key, self._url, self._timeout = spec, key, url, timeouts(timeout_s)
        self._post: Post
        if spec.calls == "direct" and not spec.trust_env:
            connections = Connections(max_response_bytes=max_response_bytes, timeout_s=timeout_s)
            self._post = DirectPost(self.builder(), connections)
        else:
            http = _HttpClient(max_response_bytes=max_response_bytes, timeout_s=timeout_s, trust_env=spec.trust_env)
            self._post = SdkPost(_client(spec, key, url, http), PATH, anthropic.APIStatusError)
        self.caches = spec.prompt_caching
        self._options = exchange.Options(spec)
        self.exchange = Exchange(
            sdk_error=(anthropic.AnthropicError,),
            redactor=Redactor([api_key or "", *spec.headers.values()]),
            options=self._options,
        )

    async def complete(self, request: ChatRequest) -> ChatReply:
        response = await self.exchange.call(self._post.send(self.body(request), request.transit), request)
        return self.read(response, request)

    def read(self, response: HttpResponse, request: ChatRequest) -> ChatReply:
        """Return the answer in a response, which need not have come by a call of its own. Raises `ProviderFailure`."""
        if not response.is_success:
            raise self.exchange.status_failure(response, request)
        try:
            return self._reply(response, request, structured=self._is_structured(request))
        except MalformedBody as reason:
            failure = self.exchange.malformed(reason, response, request)
        raise failure

    async def close(self) -> None:
        await self._post.close()

    def builder(self) -> Build:
        """Return a builder of requests like this pool's calls, whose address ends with `PATH`."""
        return built_by(_client(self._spec, self._key, self._url, UnsentClient(self._timeout)), PATH)

    def _is_structured(self, request: ChatRequest) -> bool:
        return self.structured_output and request.schema is not None

    def body(self, request: ChatRequest) -> dict[str, Any]:
        """Return the body of a call."""
        body: dict[str, Any] = {
            "model": request.model,
            "max_tokens": request.max_tokens,
            "messages": [{"role": "user", "content": _content(request, cached=self.caches and _is_long(request))}],
        }
        if request.system:
            body["system"] = request.system
        self._options.add(body, request)
        if self._is_structured(request) and request.schema is not None:
            if self._forced_tool:
                body["tools"] = [{"name": request.schema_name, "input_schema": request.schema}]
                body["tool_choice"] = {
                    "type": "tool",
                    "name": request.schema_name,
                    "disable_parallel_tool_use": True,
                }
            else:
                schema = anthropic.transform_schema(dict(request.schema))
                body.setdefault("output_config", {})["format"] = {"type": "json_schema", "schema": schema}
        return body

    def _reply(self, response: HttpResponse, request: ChatRequest, *, structured: bool) -> ChatReply:
        body = exchange.decode(response.content)
        blocks = body.get("content")
        if exchange.error_in(body) is not None:
            raise MalformedBody("an error instead of an answer")
        if not isinstance(blocks, list):
            raise MalformedBody("no content")
        used, ended = exchange.usage(body.get("usage"), _USAGE), body.get("stop_reason")
        cut = ended in ("max_tokens", "model_context_window_exceeded")
        if ended == "refusal":
            raise exchange.RefusedAnswer("the model refused to answer", used)
        call = _tool_call(blocks, request.schema_name) if structured and self._forced_tool else None
        if call is not None:
            exchange.refuse_duplicate_keys(response.content)
        exchange.check_end(ended, _text(blocks) if call is None else "{", used, cut=cut)
        return ChatReply(
            text=orjson.dumps(call).decode() if call is not None else exchange.text(blocks, "the content", used),
            model=exchange.model(body.get("model"), request.model),
            usage=used,
            structured=structured and (call is not None or not self._forced_tool),
            truncated=cut,
            headers=rate_limit_headers(response.headers),
        )


CACHED_FROM = {
    "claude-fable": 512, "claude-mythos": 512, "claude-opus-4-1": 1024, "claude-opus-4-2": 1024,
    "claude-sonnet-4": 1024, "claude-3-7": 1024, "claude-3-5-haiku": 2048, "claude-3-haiku": 2048,
}  # fmt: skip
"""The tokens from which on models cache a prefix, by how their names begin; any other caches 4,096."""
LONGEST_MINIMUM = 4096
CHARS_PER_TOKEN = 4


def _is_long(request: ChatRequest) -> bool:
    """Whether what the request shares with others is long enough for its model's cache. An estimate: where it is wrong,
    the provider leaves the mark unheeded."""
    least = next((tokens for name, tokens in CACHED_FROM.items() if name in request.model), LONGEST_MINIMUM)
    return bool(request.shared) and len(request.system) + request.shared >= least * CHARS_PER_TOKEN


def _content(request: ChatRequest, *, cached: bool) -> str | list[dict[str, Any]]:
    """Return the user's message; one without images is a plain text. What is to be cached ends with a block of its
    own."""
    if cached:
        blocks = [_block(piece) for piece in replace(request, user=request.user[: request.shared]).pieces]
        blocks[-1]["cache_control"] = {"type": "ephemeral"}
        return [*blocks, _block(request.user[request.shared :])]
    return [_block(piece) for piece in request.pieces] if request.images else request.user


def _block(piece: str | ImagePart) -> dict[str, Any]:
    """Return one content block. The API has no `detail` for images, so it is left out."""
    if isinstance(piece, str):
        return {"type": "text", "text": piece}
    if piece.address:
        return {"type": "image", "source": {"type": "url", "url": piece.address}}
    return {"type": "image", "source": {"type": "base64", "media_type": piece.type, "data": piece.data}}


def _client(spec: PoolSpec, api_key: str, base_url: str, http_client: httpx2.AsyncClient) -> anthropic.AsyncAnthropic:
    """Build the SDK's client. It ignores the environment, whose headers are meant for Anthropic and no other host."""
    client = anthropic.AsyncAnthropic(
        base_url=base_url, api_key=api_key, max_retries=0, default_headers=spec.headers, default_query=spec.query,
        http_client=http_client,
    )  # fmt: skip
    if not spec.trust_env:
        client._custom_headers = dict(spec.headers)
    return client


def _text(blocks: list[Any]) -> str:
    """Return the words of an answer, without what was reasoned."""
    return "".join(str(block.get("text") or "") for block in blocks if isinstance(block, dict))


def _tool_call(blocks: list[Any], name: str) -> dict[str, Any] | None:
    """Return the input of the forced tool, or None if the server ignored the tool and answered in words."""
    for block in blocks:
        if isinstance(block, dict) and block.get("type") == "tool_use" and block.get("name") == name:
            return exchange.mapping(block.get("input"), "the tool's input")
    return None
