"""Reading the JSON around a model's answer: strict, typed, and never raising anything but `MalformedBody`."""

from __future__ import annotations

import json
from typing import Any

import orjson

from dicast.app.domain.opinion import Usage

_MOST_TOKENS = 10**9
_MAX_MODEL_CHARS = 200


class MalformedBody(Exception):
    """A response with status 200 that is no answer. The message says why and contains nothing of the body."""


def decode(content: bytes) -> dict[str, Any]:
    """Parse the body as a JSON object: no NaN, no invalid UTF-8, no lone surrogates, at most 1,024 levels deep."""
    try:
        envelope = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise MalformedBody(f"the body is no JSON ({error.msg[:60]})") from None
    if not isinstance(envelope, dict):
        raise MalformedBody("the body is no JSON object")
    return envelope


def error_in(body: dict[str, Any]) -> Any:
    """Return the error in an answer, beside its choices or within the first of them; None if there is none."""
    if body.get("error"):
        return body["error"]
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return (first.get("error") or None) if isinstance(first, dict) else None


def refuse_duplicate_keys(content: bytes) -> None:
    """Raise `MalformedBody` if an object has a key twice: in answers that are JSON values within the envelope, the
    later key would win silently."""

    def unique(pairs: list[tuple[str, Any]]) -> None:
        if len({key for key, _ in pairs}) < len(pairs):
            raise MalformedBody("a JSON object has the same key twice")

    try:
        json.loads(content, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        raise MalformedBody("the body is no JSON") from None


def text(value: Any, what: str) -> str:
    """Return a non-empty text. A list of text parts, as some chat servers send it, is joined."""
    if isinstance(value, list):
        parts = [part.get("text") for part in value if isinstance(part, dict) and part.get("type") == "text"]
        value = "".join(part for part in parts if isinstance(part, str))
    if not isinstance(value, str):
        raise MalformedBody(f"{what} is no text")
    if not value:
        raise MalformedBody(f"{what} is empty")
    return value


def mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedBody(f"{what} is no object")
    return value


def model(value: Any, requested: str) -> str:
    """Return the name of the model that answered, or the requested one if that name is unusable."""
    return value if isinstance(value, str) and 0 < len(value) <= _MAX_MODEL_CHARS and value.isprintable() else requested


def usage(value: Any, input_keys: tuple[str, ...], output_key: str) -> Usage:
    """Return the tokens as reported; missing, negative and absurd numbers count as 0."""
    report = value if isinstance(value, dict) else {}
    return Usage(
        input_tokens=sum(_tokens(report.get(key)) for key in input_keys), output_tokens=_tokens(report.get(output_key))
    )


def _tokens(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS else 0
