"""What models of the simulated provider do beside answering, in the words of their APIs: they reason, refuse to answer,
are filtered, refuse parameters, and cache the beginnings of requests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from dicast.app.providers.simulated import ParsedCall, tokens_of


def ended(dialect: str, body: dict[str, Any], call: ParsedCall, reasoning: int, fault: str | None) -> bytes:
    """Return the answer of a model that has first reasoned for so many tokens, and refuses or is filtered if the fault
    says so. Whoever reasons for `max_tokens` says nothing."""
    silent = fault is not None or reasoning >= call.max_tokens
    usage = body["usage"]
    if dialect == "anthropic":
        usage["output_tokens"] = call.max_tokens if silent else usage["output_tokens"] + reasoning
        if silent:
            body["content"] = [{"type": "thinking", "thinking": "Let me see.", "signature": "simulated"}]
            ends = {"refusal": "refusal", "filtered": "content_filtered"}
            body["stop_reason"] = ends.get(fault or "", "max_tokens")
        return orjson.dumps(body)
    if dialect == "responses":
        usage["output_tokens"] = call.max_tokens if silent else usage["output_tokens"] + reasoning
        usage["total_tokens"] = usage["input_tokens"] + usage["output_tokens"]
        usage["output_tokens_details"] = {"reasoning_tokens": min(reasoning, usage["output_tokens"])}
        if silent:
            part = {"type": "refusal", "refusal": "I cannot help with that."}
            body["output"] = [{"type": "message", "role": "assistant", "content": [part] if fault == "refusal" else []}]
            reason = {"refusal": None, "filtered": "content_filter"}.get(fault or "", "max_output_tokens")
            body["status"] = "incomplete" if reason else "completed"
            body["incomplete_details"] = {"reason": reason} if reason else None
        return orjson.dumps(body)
    count = len(body["choices"])
    used = call.max_tokens * count if silent else usage["completion_tokens"] + reasoning * count
    usage["completion_tokens"], usage["total_tokens"] = used, usage["prompt_tokens"] + used
    usage["completion_tokens_details"] = {"reasoning_tokens": min(reasoning * count, used)}
    if silent:
        refusal = "I cannot help with that." if fault == "refusal" else None
        message = {"role": "assistant", "content": None, "refusal": refusal}
        ends = {"refusal": "stop", "filtered": "content_filter"}
        ended_by = ends.get(fault or "", "length")
        body["choices"] = [{"index": n, "message": message, "finish_reason": ended_by} for n in range(count)]
    return orjson.dumps(body)


def _openai(field: str, model: str) -> Any:
    message = f"Unsupported value: '{field}' does not support this value with this model."
    error = {"message": message, "type": "invalid_request_error", "param": field, "code": "unsupported_value"}
    return {"error": error}


def _anthropic(field: str, model: str) -> Any:
    return {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": f"{field}: Extra inputs are not permitted"},
    }


def _gemini(field: str, model: str) -> Any:
    message = f'Invalid JSON payload received. Unknown name "{field}": Cannot find field.'
    return [{"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}]


def _mistral(field: str, model: str) -> Any:
    detail = [{"type": "extra_forbidden", "loc": ["body", field], "msg": "Extra inputs are not permitted"}]
    return {"object": "error", "message": {"detail": detail}, "type": "invalid_request_error", "code": None}


def _groq(field: str, model: str) -> Any:
    return {"error": {"message": f"property '{field}' is unsupported", "type": "invalid_request_error"}}


def _xai(field: str, model: str) -> Any:
    head, *tail = field.split("_")
    name = head + "".join(part.title() for part in tail)
    return {
        "code": "Client specified an invalid argument",
        "error": f"Model {model} does not support parameter {name}.",
    }


def _fastapi(field: str, model: str) -> Any:
    return {"detail": [{"type": "extra_forbidden", "loc": ["body", field], "msg": "Extra inputs are not permitted"}]}


def _tgi(field: str, model: str) -> Any:
    return {"error": f"Failed to deserialize the JSON body: unknown field `{field}`", "error_type": "validation"}


def _bedrock(field: str, model: str) -> Any:
    return {"message": f"Malformed input request: #: extraneous key [{field}] is not permitted, please reformat."}


def _argument(field: str, model: str) -> Any:
    message = f"Unrecognized request argument supplied: {field}"
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}


def _serde(field: str, model: str) -> Any:
    """The words of a Rust server, which list all fields that there are."""
    known = ", ".join(f"`{name}`" for name in _KNOWN)
    words = (
        f"Failed to deserialize the JSON body into the target type: {field}: unknown field `{field}`, expected one of"
    )
    return {"message": f"The model returned the following errors: {words} {known} at line 1 column 212"}


_KNOWN = (
    "messages", "model", "reasoning_effort", "max_tokens", "max_completion_tokens", "n", "response_format", "seed",
    "service_tier", "stop", "stream", "temperature", "top_p",
)  # fmt: skip


def _openrouter(field: str, model: str) -> Any:
    """The error of the model's provider within the gateway's own."""
    raw = orjson.dumps(_openai(field, model), option=orjson.OPT_INDENT_2).decode()
    return {
        "error": {
            "message": "Provider returned error",
            "code": 400,
            "metadata": {"raw": raw, "provider_name": "OpenAI"},
        },
        "user_id": "user_simulated",
    }


REFUSALS = {
    "openai": (400, _openai), "anthropic": (400, _anthropic), "gemini": (400, _gemini), "mistral": (422, _mistral),
    "groq": (400, _groq), "xai": (400, _xai), "fastapi": (422, _fastapi), "tgi": (422, _tgi),
    "bedrock": (400, _bedrock), "argument": (400, _argument), "serde": (400, _serde), "openrouter": (400, _openrouter),
}  # fmt: skip
"""How providers refuse a parameter: the status, and the body that names it."""


def refusal(body: Mapping[str, Any], fields: Sequence[str], style: str) -> tuple[int, bytes] | None:
    """Return the refusal of a request that has one of these fields; a dot leads into an object."""
    for field in filter(None, fields):
        value: Any = body
        for step in field.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        if value is not None:
            status, words = REFUSALS[style]
            return status, orjson.dumps(words(field, str(body.get("model"))))
    return None


class CachedTokens(NamedTuple):
    """The tokens of a call that were read from the cache and written to it, and the keys that it keeps alive."""

    read: int = 0
    written: int = 0
    keys: tuple[str, ...] = ()


BLOCK_TOKENS = 128
_CHARS = 4


class PrefixCache:
    """Beginnings of requests, kept from the first answer on. OpenAI caches by itself, in steps of 128 tokens and at no
    price; Anthropic up to a mark in the request, and charges for writing."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def look(self, dialect: str, call: ParsedCall, now: float, minimum: int) -> CachedTokens:
        """Return what a call finds, as it arrives."""
        if not minimum:
            return CachedTokens()
        if dialect == "anthropic":
            prefix, tokens = _marked(call.body)
            if tokens < minimum:
                return CachedTokens()
            key = _key(call.model, prefix)
            is_there = self._until.get(key, 0.0) > now
            return CachedTokens(tokens if is_there else 0, 0 if is_there else tokens, (key,))
        keys = dict(_beginnings(call, minimum))
        read = max((tokens for key, tokens in keys.items() if self._until.get(key, 0.0) > now), default=0)
        return CachedTokens(min(read, call.input_tokens), 0, tuple(keys))

    def keep(self, cached: CachedTokens, until: float) -> None:
        """Keep what an answered call has used."""
        self._until.update(dict.fromkeys(cached.keys, until))


def _key(model: str, text: str) -> str:
    return hashlib.sha256(f"{model}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()


def _beginnings(call: ParsedCall, minimum: int) -> Iterator[tuple[str, int]]:
    """Yield the key of each beginning that is long enough, and its tokens; the schema comes before all texts."""
    head = orjson.dumps(call.body.get("response_format")).decode()
    for tokens in range(BLOCK_TOKENS, call.input_tokens + 1, BLOCK_TOKENS):
        if tokens >= minimum:
            yield _key(call.model, head + call.prompt[: tokens * _CHARS]), tokens


def _marked(body: Mapping[str, Any]) -> tuple[str, int]:
    """Return all that stands before the mark of a request, and the tokens of its texts; nothing without a mark."""
    content = body["messages"][0]["content"]
    texts = [str(body.get("system") or "")]
    for block in content if isinstance(content, list) else ():
        texts.append(orjson.dumps(block.get("text") or block.get("source")).decode())
        if "cache_control" in block:
            head = orjson.dumps([body.get("tools"), body.get("output_config")]).decode()
            return head + "".join(texts), tokens_of("".join(texts))
    return "", 0


def cached_usage(dialect: str, body: dict[str, Any], cached: CachedTokens) -> bytes:
    """Return an answer that tells what was cached of its call."""
    usage = body["usage"]
    if dialect == "anthropic":
        usage["input_tokens"] = max(0, usage["input_tokens"] - cached.read - cached.written)
        usage |= {"cache_read_input_tokens": cached.read, "cache_creation_input_tokens": cached.written}
    else:
        name = "input_tokens_details" if dialect == "responses" else "prompt_tokens_details"
        usage[name] = {"cached_tokens": cached.read}
    return orjson.dumps(body)
