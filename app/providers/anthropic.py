"""Anthropic's messages, and servers that speak them.

Structured answers come through one of two channels: `json_schema` (the API's native structured output, where the model
cannot write anything else) or `tool` (a forced tool call, which compatible servers know).
"""

from __future__ import annotations

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

_INPUT_TOKENS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


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
        self._post: Post
        if spec.calls == "direct" and not spec.trust_env:
            connections = Connections(max_response_bytes=max_response_bytes, timeout_s=timeout_s)
            self._post = DirectPost(
                built_by(_client(spec, key, url, UnsentClient(timeouts(timeout_s))), PATH), connections
            )
        else:
            http = _HttpClient(max_response_bytes=max_response_bytes, timeout_s=timeout_s, trust_env=spec.trust_env)
            self._post = SdkPost(_client(spec, key, url, http), PATH, anthropic.APIStatusError)
        self._exchange = Exchange(
            sdk_error=(anthropic.AnthropicError,),
            redactor=Redactor([api_key or "", *spec.headers.values()]),
        )

    async def complete(self, request: ChatRequest) -> ChatReply:
        structured = self.structured_output and request.schema is not None
        body = self._body(request, structured=structured)
        response = await self._exchange.call(self._post.send(body, request.transit), request)
        try:
            return self._reply(response, request, structured=structured)
        except MalformedBody as reason:
            failure = self._exchange.malformed(reason, response)
        raise failure

    async def close(self) -> None:
        await self._post.close()

    def _body(self, request: ChatRequest, *, structured: bool) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": request.model,
            "max_tokens": request.max_tokens,
            "messages": [{"role": "user", "content": _content(request)}],
        }
        if request.system:
            body["system"] = request.system
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if structured and request.schema is not None:
            if self._forced_tool:
                body["tools"] = [{"name": request.schema_name, "input_schema": request.schema}]
                body["tool_choice"] = {
                    "type": "tool",
                    "name": request.schema_name,
                    "disable_parallel_tool_use": True,
                }
            else:
                schema = anthropic.transform_schema(dict(request.schema))
                body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        return body

    def _reply(self, response: HttpResponse, request: ChatRequest, *, structured: bool) -> ChatReply:
        body = exchange.decode(response.content)
        blocks = body.get("content")
        if exchange.error_in(body) is not None:
            raise MalformedBody("an error instead of an answer")
        if not isinstance(blocks, list):
            raise MalformedBody("no content")
        if body.get("stop_reason") == "refusal":
            raise MalformedBody("the model refused to answer")
        call = _tool_call(blocks, request.schema_name) if structured and self._forced_tool else None
        if call is not None:
            exchange.refuse_duplicate_keys(response.content)
        return ChatReply(
            text=orjson.dumps(call).decode() if call is not None else exchange.text(blocks, "the content"),
            model=exchange.model(body.get("model"), request.model),
            usage=exchange.usage(body.get("usage"), _INPUT_TOKENS, "output_tokens"),
            structured=structured and (call is not None or not self._forced_tool),
            truncated=body.get("stop_reason") in ("max_tokens", "model_context_window_exceeded"),
            headers=rate_limit_headers(response.headers),
        )


def _content(request: ChatRequest) -> str | list[dict[str, Any]]:
    """Return the user's message; one without images is a plain text."""
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


def _tool_call(blocks: list[Any], name: str) -> dict[str, Any] | None:
    """Return the input of the forced tool, or None if the server ignored the tool and answered in words."""
    for block in blocks:
        if isinstance(block, dict) and block.get("type") == "tool_use" and block.get("name") == name:
            return exchange.mapping(block.get("input"), "the tool's input")
    return None
