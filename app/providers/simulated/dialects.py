"""The two APIs on the wire: requests, answers, errors, rate-limit headers, and bodies that no provider should send."""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
from aiohttp import web

from dicast.app.domain.image import media_type
from dicast.app.providers.simulated.account import Level, Limits
from dicast.app.providers.simulated.budgets import duration, instant


def openai(limits: Limits, now: float) -> dict[str, str]:
    """`x-ratelimit-*` of the limits that are set; resets tell when the bucket is full."""
    headers: dict[str, str] = {}
    for axis, bucket in (("requests", limits.requests), ("tokens", limits.tokens)):
        if bucket:
            level = bucket.level(now)
            headers[f"x-ratelimit-limit-{axis}"] = str(level.limit)
            headers[f"x-ratelimit-remaining-{axis}"] = str(int(level.remaining))
            headers[f"x-ratelimit-reset-{axis}"] = duration(level.full_in_s)
    return headers


def anthropic(limits: Limits, now: float, unix_s: float) -> dict[str, str]:
    """`anthropic-ratelimit-*` of the limits that are set; tokens left are rounded to thousands.

    The plain `tokens` axis repeats whichever of input and output is closer to its end.
    """
    axes: dict[str, Level] = {}
    if limits.requests:
        axes["requests"] = limits.requests.level(now)
    if limits.tokens:
        axes["input-tokens"] = limits.tokens.level(now)
    if limits.output:
        axes["output-tokens"] = limits.output.level(now)
    of_tokens = [level for axis, level in axes.items() if axis != "requests"]
    if of_tokens:
        axes["tokens"] = min(of_tokens, key=lambda level: level.remaining / level.limit)
    headers: dict[str, str] = {}
    for axis, level in axes.items():
        remaining = int(level.remaining) if axis == "requests" else round(level.remaining / 1000) * 1000
        headers[f"anthropic-ratelimit-{axis}-limit"] = str(level.limit)
        headers[f"anthropic-ratelimit-{axis}-remaining"] = str(remaining)
        headers[f"anthropic-ratelimit-{axis}-reset"] = instant(unix_s + level.full_in_s)
    return headers


_CHARS_PER_TOKEN = 4
_IMAGE_TOKENS = 765
_DATA = "data:"


class BadRequest(Exception):
    """The request does not follow the API."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A request, whichever API it came through. Tokens are estimated at four characters each."""

    model: str
    prompt: str
    max_tokens: int
    schema: Mapping[str, Any] | None
    tool: str | None
    images: tuple[str, ...] = ()
    """The SHA-256 of images that came with the request, and the addresses of others, which are not fetched."""

    @property
    def input_tokens(self) -> int:
        return tokens_of(self.prompt) + _IMAGE_TOKENS * len(self.images)


class WireFormat(Protocol):
    """One API."""

    name: str

    def read(self, body: Any) -> ParsedCall: ...

    def charge(self, call: ParsedCall) -> int:
        """Return the tokens that are taken from the bucket when the call arrives."""
        ...

    def reply_body(self, call: ParsedCall, text: str, number: int) -> bytes: ...

    def error(self, status: int, reason: str) -> bytes: ...

    def headers(self, limits: Limits, now: float, unix_s: float) -> dict[str, str]: ...


def tokens_of(text: str) -> int:
    return math.ceil(len(text) / _CHARS_PER_TOKEN)


class OpenAI:
    name = "openai"

    def read(self, body: Any) -> ParsedCall:
        messages = _messages(body)
        prompt = "\n".join(_words(_object(message).get("content")) for message in messages)
        response_format = body.get("response_format") or {}
        schema = None
        if response_format.get("type") == "json_schema":
            schema = _object(_object(response_format.get("json_schema")).get("schema"))
        most = body.get("max_completion_tokens", body.get("max_tokens", 4096))
        return ParsedCall(_model(body), prompt, _whole(most, "max_tokens"), schema, None, _images(messages))

    def charge(self, call: ParsedCall) -> int:
        return max(call.max_tokens, call.input_tokens)

    def reply_body(self, call: ParsedCall, text: str, number: int) -> bytes:
        used = tokens_of(text)
        return orjson.dumps(
            {
                "id": f"chatcmpl-{number}",
                "object": "chat.completion",
                "created": 1_700_000_000,
                "model": call.model,
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": text, "refusal": None},
                        "logprobs": None,
                        "finish_reason": "length" if used > call.max_tokens else "stop",
                    }
                ],
                "usage": {
                    "prompt_tokens": call.input_tokens,
                    "completion_tokens": used,
                    "total_tokens": call.input_tokens + used,
                },
            }
        )

    def error(self, status: int, reason: str) -> bytes:
        kinds = {400: "invalid_request_error", 401: "invalid_request_error", 404: "invalid_request_error"}
        codes = {401: "invalid_api_key", 429: "rate_limit_exceeded", 404: "model_not_found"}
        exhausted = reason == "exhausted"
        error = {
            "message": _MESSAGES.get(reason, reason),
            "type": "insufficient_quota" if exhausted else kinds.get(status, _of_reason(reason, "server_error")),
            "param": None,
            "code": "insufficient_quota" if exhausted else codes.get(status),
        }
        return orjson.dumps({"error": error})

    def headers(self, limits: Limits, now: float, unix_s: float) -> dict[str, str]:
        return openai(limits, now)


class Anthropic:
    name = "anthropic"

    def read(self, body: Any) -> ParsedCall:
        messages = _messages(body)
        system = _words(body.get("system") or "")
        prompt = "\n".join([system, *(_words(_object(message).get("content")) for message in messages)])
        schema, tool = None, None
        output = _object(body.get("output_config") or {}).get("format") or {}
        if output.get("type") == "json_schema":
            schema = _object(output.get("schema"))
        choice = body.get("tool_choice") or {}
        if choice.get("type") in ("tool", "any"):
            tools = [_object(tool) for tool in body.get("tools") or []]
            chosen = next((tool for tool in tools if choice.get("name") in (None, tool.get("name"))), None)
            if chosen is None:
                raise BadRequest("tool_choice names no tool")
            schema, tool = _object(chosen.get("input_schema")), str(chosen.get("name"))
        most = _whole(body.get("max_tokens"), "max_tokens")
        return ParsedCall(_model(body), prompt, most, schema, tool, _images(messages))

    def charge(self, call: ParsedCall) -> int:
        return call.input_tokens

    def reply_body(self, call: ParsedCall, text: str, number: int) -> bytes:
        used = tokens_of(text)
        block: dict[str, Any] = {"type": "text", "text": text}
        if call.tool is not None:
            block = {"type": "tool_use", "id": f"toolu_{number}", "name": call.tool, "input": orjson.Fragment(text)}
        stopped = "tool_use" if call.tool is not None else "end_turn"
        return orjson.dumps(
            {
                "id": f"msg_{number}",
                "type": "message",
                "role": "assistant",
                "model": call.model,
                "content": [block],
                "stop_reason": "max_tokens" if used > call.max_tokens else stopped,
                "stop_sequence": None,
                "usage": {"input_tokens": call.input_tokens, "output_tokens": used},
            }
        )

    def error(self, status: int, reason: str) -> bytes:
        kinds = {
            400: "invalid_request_error",
            401: "authentication_error",
            404: "not_found_error",
            429: "rate_limit_error",
            529: "overloaded_error",
        }
        error: dict[str, Any] = {"type": kinds.get(status, "api_error"), "message": _MESSAGES.get(reason, reason)}
        code = {"exhausted": "enforced_spend_limit_reached", "ramp": "ramp_limit_exceeded"}.get(reason)
        if code:
            error["details"] = {"error_code": code}
        return orjson.dumps({"type": "error", "error": error, "request_id": "req_simulated"})

    def headers(self, limits: Limits, now: float, unix_s: float) -> dict[str, str]:
        return anthropic(limits, now, unix_s)


_MESSAGES = {
    "cap": "Number of concurrent requests has exceeded your limit.",
    "rpm": "Rate limit reached for requests per minute.",
    "tpm": "Rate limit reached for tokens per minute.",
    "output_tpm": "Rate limit reached for output tokens per minute.",
    "ramp": "Your request rate grew too quickly; slow down.",
    "noise": "Rate limit reached.",
    "overload": "Overloaded.",
    "failure": "The server had an error while processing your request.",
    "exhausted": "You have used up what your account may spend; see your plan and billing details.",
    "key": "Incorrect API key provided.",
}


def _of_reason(reason: str, otherwise: str) -> str:
    by_reason = {"rpm": "requests", "tpm": "tokens", "cap": "requests", "noise": "requests", "ramp": "requests"}
    return by_reason.get(reason, otherwise)


def _messages(body: Any) -> list[Any]:
    messages = _object(body).get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a list and not empty")
    return messages


def _words(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(part.get("text") or "" for part in content if isinstance(part, dict))
    raise BadRequest("content must be a text or a list of parts")


def _images(messages: list[Any]) -> tuple[str, ...]:
    """Return the images in the messages, in either API's form: digests of their bytes, or addresses."""
    contents = [content for message in messages if isinstance(content := _object(message).get("content"), list)]
    parts = [part for content in contents for part in content if isinstance(part, dict)]
    images = []
    for part in parts:
        if part.get("type") == "image_url":
            images.append(_image_key(str(_object(part.get("image_url")).get("url"))))
        elif part.get("type") == "image":
            source = _object(part.get("source"))
            url = source.get("url") if source.get("type") == "url" else None
            images.append(_image_key(url or f"{_DATA}{source.get('media_type')};base64,{source.get('data')}"))
    return tuple(images)


def _image_key(address: str) -> str:
    """Return the digest of an image's bytes, or its address."""
    if not address.startswith(_DATA):
        return address
    head, _, coded = address.partition(";base64,")
    try:
        data = base64.b64decode(coded, validate=True)
        if media_type(data) != head.removeprefix(_DATA):
            raise BadRequest("the image is of another type than it says")
    except ValueError as error:
        raise BadRequest(f"an image cannot be read: {error}") from None
    return hashlib.sha256(data).hexdigest()


def _model(body: Any) -> str:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise BadRequest("model must be a text")
    return model


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRequest("an object was expected")
    return value


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadRequest(f"{name} must be a whole number >= 1")
    return value


_JSON = {"content-type": "application/json"}
_PIECE = b" " * 65536
_BLOCK = 1 << 20


async def respond(
    fault: str, request: web.BaseRequest, body: bytes, *, interval_s: float, size: int
) -> web.StreamResponse:
    """Answer with `body` spoilt by one of BODY_FAULTS; `size` is that of bodies which are far too large.

    Some providers have sent such bodies: dripping, cut, endless, exploding, foreign.
    """
    match fault:
        case "hang":
            await asyncio.get_running_loop().create_future()
        case "html":
            page = "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"
            return web.Response(text=page, content_type="text/html")
        case "invalid_json":
            return web.Response(body=body[: len(body) // 2] + b"NaN", content_type="application/json")
        case "bomb":
            return web.Response(body=bomb(size), headers={**_JSON, "content-encoding": "gzip"})
    response = web.StreamResponse(headers=_JSON)
    response.content_length = size if fault == "huge" else len(body)
    await response.prepare(request)
    if fault == "drip":
        for byte in body:
            await response.write(bytes([byte]))
            await asyncio.sleep(interval_s)
    elif fault == "huge":
        for _ in range(size // len(_PIECE)):
            await response.write(_PIECE)
        await response.write(_PIECE[: size % len(_PIECE)])
    else:  # cut
        await response.write(body[: len(body) // 2])
        if request.transport:
            request.transport.abort()
    return response


@functools.lru_cache(maxsize=2)
def bomb(size: int) -> bytes:
    """A gzip stream that unpacks to at least `size` spaces, a thousandth as long; made of one block, repeated."""
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    head = packer.compress(b"") + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(b" " * _BLOCK) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + block * (size // _BLOCK + 1) + packer.flush()
