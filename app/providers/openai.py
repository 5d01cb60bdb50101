"""OpenAI's chat completions, and every server that speaks them: Ollama, vLLM, LiteLLM, llama.cpp, Azure; and OpenAI's
Responses API, at which alone some models answer.

Requests are built as OpenAI's SDK would, without it: it takes half a second of CPU time and 30 MB. A test compares the
two byte for byte. What only the SDK knows (Azure's addresses, rare machines) is left to it.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any
from urllib.parse import urlencode

import httpx2

from dicast.app.domain.opinion import Usage
from dicast.app.domain.prompt import LENGTHS, without
from dicast.app.domain.verdict import Token, chance_of
from dicast.app.providers import exchange
from dicast.app.providers.base import ChatReply, ChatRequest, ImagePart
from dicast.app.providers.exchange import Exchange, MalformedBody, Redactor
from dicast.app.providers.http import (
    NO_KEY,
    Build,
    Connections,
    DirectPost,
    HttpResponse,
    Post,
    UnsentClient,
    rate_limit_headers,
    timeouts,
)
from dicast.config.pools import PoolSpec

_SYSTEMS = {"Linux": "Linux", "Darwin": "MacOS"}
_MACHINES = {"x86_64": "x64", "aarch64": "arm64", "arm64": "arm64"}


def can_build(spec: PoolSpec) -> bool:
    """Whether `builder` can build this pool's requests, on this machine."""
    return spec.api_version is None and platform.system() in _SYSTEMS and platform.machine() in _MACHINES


def builder(spec: PoolSpec, api_key: str, base_url: str, path: str, timeout: httpx2.Timeout) -> Build:
    """Return a builder of requests for a pool for which `can_build` is True."""
    client = UnsentClient(timeout)

    async def build(_: str) -> httpx2.Request:
        return client.build_request(
            "POST", _address(base_url, path), content=b"{}", params=urlencode(spec.query) or None,
            headers=_merged({"Authorization": f"Bearer {api_key}"}, _headers(spec.headers, timeout)),
        )  # fmt: skip

    return build


def _address(base_url: str, path: str) -> httpx2.URL:
    base = httpx2.URL(base_url)
    return base.copy_with(raw_path=base.raw_path.removesuffix(b"/") + path.encode())


def _headers(pools_own: Mapping[str, str], timeout: httpx2.Timeout) -> dict[str, str | None]:
    """Return the SDK's headers and the pool's, which win. None removes a header, however it is spelt: the SDK gets no
    organisation and no project, so it removes these headers unless the pool spells them as it does."""
    sdk = version("openai")
    return {
        "Accept": "application/json",
        "Content-Type": "application/json",
        "User-Agent": f"AsyncOpenAI/Python {sdk}",
        "X-Stainless-Lang": "python",
        "X-Stainless-Package-Version": sdk,
        "X-Stainless-OS": _SYSTEMS[platform.system()],
        "X-Stainless-Arch": _MACHINES[platform.machine()],
        "X-Stainless-Runtime": platform.python_implementation(),
        "X-Stainless-Runtime-Version": platform.python_version(),
        **pools_own,
        "X-Stainless-Async": "async:asyncio",
        "OpenAI-Organization": None,
        "OpenAI-Project": None,
        **pools_own,
        "x-stainless-retry-count": "0",
        "x-stainless-read-timeout": str(timeout.read),
    }


def _merged(*mappings: Mapping[str, str | None]) -> dict[str, str]:
    """Merge headers: each name, whatever its case, keeps its first place and gets its last value."""
    merged: dict[str, str] = {}
    for mapping in mappings:
        for name, value in mapping.items():
            if value is None:
                merged.pop(name.lower(), None)
            else:
                merged[name.lower()] = value
    return merged


DEFAULT_BASE_URL = "https://api.openai.com/v1"
PATH = "/chat/completions"

_USAGE = exchange.UsageKeys(
    input=("prompt_tokens",),
    output="completion_tokens",
    cached=("prompt_tokens_details", "cached_tokens"),
    written=("prompt_tokens_details", "cache_write_tokens"),
    reasoning=("completion_tokens_details", "reasoning_tokens"),
    total="total_tokens",
)
_RESPONSES_USAGE = exchange.UsageKeys(
    input=("input_tokens",),
    output="output_tokens",
    cached=("input_tokens_details", "cached_tokens"),
    written=("input_tokens_details", "cache_write_tokens"),
    reasoning=("output_tokens_details", "reasoning_tokens"),
    total="total_tokens",
)


class OpenAIProvider:
    """Calls one pool through OpenAI's API. `timeout_s` bounds silences; the caller sets the total deadline.

    Calls are sent as the SDK's `post` sends them (app/providers/http.py); its `chat.completions.create` would send
    the same bodies, after a walk over typed parameters. The SDK is loaded only by pools that cannot do without it.
    """

    path = PATH

    def __init__(
        self, spec: PoolSpec, *, api_key: str | None, base_url: str | None, timeout_s: float, max_response_bytes: int
    ) -> None:
        self.structured_output = spec.structured_output
        self.nonce_in_schema = spec.nonce_in_schema
        self._max_tokens_field = spec.max_tokens_field
        self._schema_lengths = spec.schema_lengths
        key, url = api_key or NO_KEY, base_url or spec.base_url or DEFAULT_BASE_URL
        self._spec, self._key, self._url, self._timeout = spec, key, url, timeouts(timeout_s)
        self._post, sdk_error = _post(
            spec, key, url, self.path, max_response_bytes=max_response_bytes, timeout_s=timeout_s
        )
        self.caches = spec.prompt_caching
        self._options = exchange.Options(spec)
        self.exchange = Exchange(
            sdk_error=sdk_error,
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
            return self._reply(response, request)
        except MalformedBody as reason:
            failure = self.exchange.malformed(reason, response, request)
        raise failure

    async def close(self) -> None:
        await self._post.close()

    def builder(self) -> Build:
        """Return a builder of requests like this pool's calls, whose address ends with `path`."""
        if can_build(self._spec):
            return builder(self._spec, self._key, self._url, self.path, self._timeout)
        from dicast.app.providers import openai_sdk  # noqa: PLC0415  half a second, which few pools need

        return openai_sdk.builder(self._spec, self._key, self._url, self.path, self._timeout)

    def _is_structured(self, request: ChatRequest) -> bool:
        return self.structured_output and request.schema is not None

    def body(self, request: ChatRequest) -> dict[str, Any]:
        """Return the body of a call."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": _content(request)}]
        if request.system:
            messages.insert(0, {"role": "system", "content": request.system})
        body: dict[str, Any] = {
            "model": request.model,
            "messages": messages,
            self._max_tokens_field: request.max_tokens,
        }
        self._add_options(body, request)
        if (schema := self._schema(request)) is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    def _add_options(self, body: dict[str, Any], request: ChatRequest) -> None:
        if self.caches and request.shared:
            body["prompt_cache_key"] = exchange.cache_key(request)
        self._options.add(body, request)
        if request.service_tier:
            body["service_tier"] = request.service_tier

    def _schema(self, request: ChatRequest) -> dict[str, Any] | None:
        """Return the answer's schema as the API takes it; None without one."""
        if request.schema is None or not self.structured_output:
            return None
        schema = request.schema if self._schema_lengths else without(request.schema, LENGTHS)
        return {"name": request.schema_name, "strict": True, "schema": schema}

    def _reply(self, response: HttpResponse, request: ChatRequest) -> ChatReply:
        body = exchange.decode(response.content)
        choices = body.get("choices")
        if exchange.error_in(body) is not None:
            raise MalformedBody("an error instead of an answer")
        if not isinstance(choices, list) or not choices:
            raise MalformedBody("no choices")
        used = exchange.usage(body.get("usage"), _USAGE, body.get("service_tier"))
        replies, refusals = list[ChatReply](), list[MalformedBody]()
        for choice in choices[: request.answers]:
            try:
                replies.append(_choice(choice, body, request, used, structured=self._is_structured(request)))
            except MalformedBody as reason:
                refusals.append(reason)
        if not replies:
            raise refusals[0]
        headers = rate_limit_headers(response.headers)
        return replace(replies[0], headers=headers, others=replies[1:], choices=len(choices))


class ResponsesProvider(OpenAIProvider):
    """Calls one pool through OpenAI's Responses API. Nothing is stored there (`store: false`)."""

    path = "/responses"

    def body(self, request: ChatRequest) -> dict[str, Any]:
        content: str | list[dict[str, Any]] = request.user
        if request.images:
            content = [_input_part(piece) for piece in request.pieces]
        body: dict[str, Any] = {
            "model": request.model,
            "input": [{"role": "user", "content": content}],
            "max_output_tokens": request.max_tokens,
            "store": False,
        }
        if request.system:
            body["instructions"] = request.system
        self._add_options(body, request)
        if body.pop("logprobs", False):
            body["include"] = ["message.output_text.logprobs"]
        if (schema := self._schema(request)) is not None:
            body.setdefault("text", {})["format"] = {"type": "json_schema", **schema}
        return body

    def _reply(self, response: HttpResponse, request: ChatRequest) -> ChatReply:
        body = exchange.decode(response.content)
        if exchange.error_in(body) is not None:
            raise MalformedBody("an error instead of an answer")
        usage = exchange.usage(body.get("usage"), _RESPONSES_USAGE, body.get("service_tier"))
        parts = _message_parts(body.get("output"))
        content = "".join(part["text"] for part in parts if isinstance(part.get("text"), str))
        if not content and any(part.get("refusal") for part in parts):
            raise exchange.RefusedAnswer("the model refused to answer", usage)
        details = body.get("incomplete_details")
        end_reason = details.get("reason") if isinstance(details, dict) else None
        is_cut = end_reason == "max_output_tokens"
        exchange.check_end(end_reason, content, usage, cut=is_cut)
        entries = [entry for part in parts for entry in part.get("logprobs") or ()] if request.logprobs else []
        return ChatReply(
            text=exchange.text(content, "the message", usage),
            model=exchange.model(body.get("model"), request.model),
            usage=usage,
            structured=self._is_structured(request),
            truncated=is_cut,
            headers=rate_limit_headers(response.headers),
            tokens=_tokens({"content": entries}),
        )


def _message_parts(output: Any) -> list[dict[str, Any]]:
    """Return the parts of a response's message, which may stand behind its reasoning."""
    if not isinstance(output, list):
        raise MalformedBody("no output")
    messages = [entry for entry in output if isinstance(entry, dict) and entry.get("type") == "message"]
    contents = [message["content"] for message in messages if isinstance(message.get("content"), list)]
    return [part for content in contents for part in content if isinstance(part, dict)]


def _input_part(piece: str | ImagePart) -> dict[str, Any]:
    if isinstance(piece, str):
        return {"type": "input_text", "text": piece}
    url = piece.address or f"data:{piece.type};base64,{piece.data}"
    return {"type": "input_image", "image_url": url, **({"detail": piece.detail} if piece.detail else {})}


def _content(request: ChatRequest) -> str | list[dict[str, Any]]:
    """Return the user's message; one without images is a plain text, which every server understands."""
    return [_part(piece) for piece in request.pieces] if request.images else request.user


def _part(piece: str | ImagePart) -> dict[str, Any]:
    if isinstance(piece, str):
        return {"type": "text", "text": piece}
    image = {"url": piece.address or f"data:{piece.type};base64,{piece.data}"}
    return {"type": "image_url", "image_url": {**image, "detail": piece.detail} if piece.detail else image}


def load(spec: PoolSpec) -> None:
    """Import the SDK if this pool cannot do without it."""
    if not _needs_no_sdk(spec):
        from dicast.app.providers import openai_sdk as _  # noqa: F401, PLC0415  half a second, which few pools need


def _needs_no_sdk(spec: PoolSpec) -> bool:
    """Whether this pool's calls are made without the SDK."""
    return spec.calls == "direct" and not spec.trust_env and can_build(spec)


def _post(
    spec: PoolSpec, key: str, url: str, path: str, *, max_response_bytes: int, timeout_s: float
) -> tuple[Post, tuple[type[Exception], ...]]:
    """Return what sends a pool's calls, and the errors that the SDK raises if it takes part in them."""
    if _needs_no_sdk(spec):
        build = builder(spec, key, url, path, timeouts(timeout_s))
        return DirectPost(build, Connections(max_response_bytes=max_response_bytes, timeout_s=timeout_s)), ()
    from dicast.app.providers import openai_sdk  # noqa: PLC0415  as above

    make = openai_sdk.sdk_post if spec.calls == "sdk" or spec.trust_env else openai_sdk.direct_post
    post = make(spec, key, url, path, max_response_bytes=max_response_bytes, timeout_s=timeout_s)
    return post, openai_sdk.ERRORS


def _choice(
    value: Any, body: Mapping[str, Any], request: ChatRequest, used: Usage, *, structured: bool
) -> ChatReply:  # fmt: skip
    """Return one of a response's answers. Raises `MalformedBody` with what all of them took."""
    choice = exchange.mapping(value, "the choice")
    message, ended = exchange.mapping(choice.get("message"), "the message"), choice.get("finish_reason")
    content, cut = message.get("content"), ended == "length"
    if not content and message.get("refusal"):
        raise exchange.RefusedAnswer("the model refused to answer", used)
    exchange.check_end(ended, content, used, cut=cut)
    return ChatReply(
        text=exchange.text(content, "the content", used),
        model=exchange.model(body.get("model"), request.model),
        usage=used,
        structured=structured,
        truncated=cut,
        fingerprint=exchange.fingerprint(body.get("system_fingerprint")),
        tokens=_tokens(choice.get("logprobs")) if request.logprobs else (),
    )


def _tokens(logprobs: Any) -> list[Token]:
    """Return the tokens of an answer as far as they are told in the documented form; none of them otherwise."""
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        return []
    tokens = []
    for entry in content:
        data, alternatives = _bytes(entry), entry.get("top_logprobs")
        chances: dict[bytes, float] = {}
        for other in alternatives if isinstance(alternatives, list) else ():
            chance = chance_of(other.get("logprob")) if isinstance(other, dict) else None
            if chance is not None:
                chances[_bytes(other)] = chances.get(_bytes(other), 0.0) + chance
        chances.setdefault(data, chance_of(entry.get("logprob")) or 0.0)
        tokens.append(Token(data, chances))
    return tokens


def _bytes(entry: Mapping[str, Any]) -> bytes:
    """Return a token's bytes; its text holds a part of a character only as a replacement."""
    data, text = entry.get("bytes"), entry.get("token")
    if isinstance(data, list) and all(type(byte) is int and 0 <= byte < 256 for byte in data):
        return bytes(data)
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else b""
