"""OpenAI's chat completions, and every server that speaks them: Ollama, vLLM, LiteLLM, llama.cpp, Azure."""

from __future__ import annotations

from typing import Any

import httpx2
import openai

from dicast.app.domain.answer_schema import LENGTHS, without
from dicast.app.domain.opinion import Usage
from dicast.app.providers import envelope
from dicast.app.providers.base import ChatReply, ChatRequest, ImagePart
from dicast.app.providers.envelope import MalformedBody
from dicast.app.providers.exchange import Exchange
from dicast.app.providers.http import NO_KEY, BoundedBodies, Connections, HttpAnswer, patience, rate_limit_headers
from dicast.app.providers.posting import DirectPost, Post, SdkPost, Unsent
from dicast.app.providers.redaction import Redactor
from dicast.config.pools import PoolSpec

DEFAULT_BASE_URL = "https://api.openai.com/v1"
PATH = "/chat/completions"


class _HttpClient(BoundedBodies, openai.DefaultAioHttpClient):
    pass


class OpenAIProvider:
    """One pool spoken to in OpenAI's dialect. `timeout_s` bounds silences; the total deadline is the caller's.

    Calls are sent as the SDK's `post` sends them (app/providers/posting.py); its `chat.completions.create` would send
    the same bodies, after a walk over typed parameters.
    """

    def __init__(
        self, spec: PoolSpec, *, api_key: str | None, base_url: str | None, timeout_s: float, max_response_bytes: int
    ) -> None:
        self.structured_output = spec.structured_output
        self.nonce_in_schema = spec.nonce_in_schema
        self._max_tokens_field = spec.max_tokens_field
        self._schema_lengths = spec.schema_lengths
        key, url = api_key or NO_KEY, base_url or spec.base_url or DEFAULT_BASE_URL
        self._post: Post
        if spec.calls == "direct" and not spec.trust_env:
            connections = Connections(max_response_bytes=max_response_bytes, timeout_s=timeout_s)
            self._post = DirectPost(_client(spec, key, url, Unsent(timeout=patience(timeout_s))), PATH, connections)
        else:
            http = _HttpClient(max_response_bytes=max_response_bytes, timeout_s=timeout_s, trust_env=spec.trust_env)
            self._post = SdkPost(_client(spec, key, url, http), PATH, openai.APIStatusError)
        self._exchange = Exchange(
            sdk_error=openai.OpenAIError,
            redactor=Redactor([api_key or "", *spec.headers.values()]),
        )

    async def complete(self, request: ChatRequest) -> ChatReply:
        structured = self.structured_output and request.schema is not None
        body = self._body(request, structured=structured)
        response = await self._exchange.call(self._post.send(body), request)
        try:
            return _reply(response, request, structured=structured)
        except MalformedBody as reason:
            failure = self._exchange.malformed(reason, response)
        raise failure

    async def close(self) -> None:
        await self._post.close()

    def _body(self, request: ChatRequest, *, structured: bool) -> dict[str, Any]:
        messages: list[dict[str, Any]] = [{"role": "user", "content": _content(request)}]
        if request.system:
            messages.insert(0, {"role": "system", "content": request.system})
        body: dict[str, Any] = {
            "model": request.model,
            "messages": messages,
            self._max_tokens_field: request.max_tokens,
        }
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if structured and request.schema is not None:
            schema = request.schema if self._schema_lengths else without(request.schema, LENGTHS)
            json_schema = {"name": request.schema_name, "strict": True, "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": json_schema}
        return body


def _content(request: ChatRequest) -> str | list[dict[str, Any]]:
    """The user's message; one without images is a text, which every server understands."""
    return [_part(piece) for piece in request.pieces] if request.images else request.user


def _part(piece: str | ImagePart) -> dict[str, Any]:
    if isinstance(piece, str):
        return {"type": "text", "text": piece}
    told = {"url": piece.address or f"data:{piece.type};base64,{piece.data}"}
    return {"type": "image_url", "image_url": {**told, "detail": piece.detail} if piece.detail else told}


def _client(spec: PoolSpec, api_key: str, base_url: str, http_client: httpx2.AsyncClient) -> openai.AsyncOpenAI:
    """The SDK's client, deaf to the environment: an organisation or headers meant for OpenAI go to no other host."""
    options: dict[str, Any] = {
        "api_key": api_key, "max_retries": 0, "default_headers": spec.headers, "default_query": spec.query,
        "http_client": http_client,
    }  # fmt: skip
    client: openai.AsyncOpenAI
    if spec.api_version is not None:
        client = openai.AsyncAzureOpenAI(azure_endpoint=base_url, api_version=spec.api_version, **options)
    else:
        client = openai.AsyncOpenAI(base_url=base_url, **options)
    if not spec.trust_env:
        client.organization = client.project = None
        client._custom_headers = dict(spec.headers)
    return client


def _reply(response: HttpAnswer, request: ChatRequest, *, structured: bool) -> ChatReply:
    answer = envelope.decode(response.content)
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        raise MalformedBody("an error instead of choices" if "error" in answer else "no choices")
    choice = envelope.mapping(choices[0], "the choice")
    message = envelope.mapping(choice.get("message"), "the message")
    if message.get("content") is None and message.get("refusal"):
        raise MalformedBody("the model refused to answer")
    return ChatReply(
        text=envelope.text(message.get("content"), "the content"),
        model=envelope.model(answer.get("model"), request.model),
        usage=_usage(answer),
        structured=structured,
        truncated=choice.get("finish_reason") == "length",
        headers=rate_limit_headers(response.headers),
    )


def _usage(answer: dict[str, Any]) -> Usage:
    return envelope.usage(answer.get("usage"), ("prompt_tokens",), "completion_tokens")
