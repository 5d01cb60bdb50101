"""The two APIs with what an account adds to them: charges, errors with their reasons, and rate-limit headers."""

from __future__ import annotations

from typing import Any, Protocol

import orjson

from dicast.app.providers.simulated import Anthropic, OpenAI, ParsedCall, Responses, WireFormat
from lab.provider.account import Level, Limits
from lab.provider.budgets import duration, instant


class AccountFormat(WireFormat, Protocol):
    """One API, as it treats an account. `error` takes a reason, or any other text as the message itself."""

    def charge(self, call: ParsedCall) -> int:
        """Return the tokens that are taken from the bucket when the call arrives."""
        ...

    def headers(self, limits: Limits, now: float, unix_s: float) -> dict[str, str]: ...


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


class OpenAIAccount(OpenAI):
    """OpenAI's API, with an account behind it."""

    def charge(self, call: ParsedCall) -> int:
        return max(call.max_tokens, call.input_tokens)

    def error(self, status: int, reason: str) -> bytes:
        kinds = {400: "invalid_request_error", 401: "invalid_request_error", 404: "invalid_request_error"}
        codes = {401: "invalid_api_key", 429: "rate_limit_exceeded", 404: "model_not_found"}
        exhausted = reason == "exhausted"
        code = "resource_unavailable" if reason == "flex" else codes.get(status)
        error = {
            "message": _MESSAGES.get(reason, reason),
            "type": "insufficient_quota" if exhausted else kinds.get(status, _of_reason(reason, "server_error")),
            "param": None,
            "code": "insufficient_quota" if exhausted else code,
        }
        return orjson.dumps({"error": error})

    def headers(self, limits: Limits, now: float, unix_s: float) -> dict[str, str]:
        return openai(limits, now)


class ResponsesAccount(Responses, OpenAIAccount):
    """OpenAI's Responses API, with an account behind it."""


class AnthropicAccount(Anthropic):
    """Anthropic's API, with an account behind it."""

    def charge(self, call: ParsedCall) -> int:
        return call.input_tokens

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
    "flex": "There is no capacity for flex processing now; you are not charged.",
    "overload": "Overloaded.",
    "failure": "The server had an error while processing your request.",
    "exhausted": "You have used up what your account may spend; see your plan and billing details.",
    "key": "Incorrect API key provided.",
}


def _of_reason(reason: str, otherwise: str) -> str:
    by_reason = {"rpm": "requests", "tpm": "tokens", "cap": "requests", "noise": "requests", "ramp": "requests"}
    return by_reason.get(reason, otherwise)
