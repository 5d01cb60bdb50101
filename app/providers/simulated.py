"""`python -m dicast.app.providers.simulated`: a stand-in for a provider, for tests and first steps.

It is an HTTP server that speaks OpenAI's and Anthropic's APIs and needs no network, no key and no model:

    POST .../chat/completions, POST .../responses, POST .../messages     the APIs, under any prefix

`SimulatedJudge` makes an answer: an instance of the given JSON schema, or the object that the prompt describes. Scores
and words depend on (seed, model, prompt without its nonce) alone, so that a call repeated gets the same answer. Scores
are drawn evenly from the scale: they mean nothing. Where `logprobs` are asked for, each score's tokens have the
probabilities with which it was drawn; all others are certain.

Whoever needs more of it (limits, faults) extends `SimulatedProvider`: `serve` answers one call, and `operate` all
requests that are none.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import json
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self

import orjson
from aiohttp import web

from dicast.app.domain.image import media_type

# The machine-readable lines of app/domain/prompt.py; quoted material cannot imitate them at the start of a line.
_NONCE = re.compile(r"^(?:NONCE:|END OF MATERIAL) ([0-9a-f]{16,64})$", re.MULTILINE)
_SCALE = re.compile(r"^SCALE: (-?\d{1,9})\.\.(-?\d{1,9})$", re.MULTILINE)
_LABELS = re.compile(r"^LABELS: (\[.*\])$", re.MULTILINE)
_QUESTIONS = re.compile(r"^(?:QUESTIONS|STATEMENTS): (\d{1,3})$", re.MULTILINE)
CRITERION = re.compile(r'^CRITERION: (".*") SCALE: (-?\d{1,9})\.\.(-?\d{1,9})$', re.MULTILINE)
_DISSENT = re.compile(r'Under "dissent",')
_CITED_VERDICTS = re.compile(r'^By the criterion ".*", judge \d+ gives (.+) and argues:$', re.MULTILINE)
# Anthropic's SDK moves bounds that the API does not know into the description: {minimum: 1, maximum: 10}
_DESCRIBED = re.compile(r"\{[^{}]*\}\s*$")
_SENTENCE = (
    "the text answers the question directly and its central claim is supported by what it cites although one step of "
    "the reasoning stays implicit while the tone fits the reader and the order of the points makes it easy to follow"
)
_WORDS = _SENTENCE.split()
_MAX_DEPTH = 30


def nonce_of(prompt: str) -> str | None:
    """Return the nonce in the prompt, or None."""
    match = _NONCE.search(prompt)
    return match[1] if match else None


class SimulatedJudge:
    """Makes one answer to a call, by its number among those that the call asks for. `argument_chars` is the length of
    free texts where the schema sets none."""

    def __init__(self, seed: int, model: str, prompt: str, argument_chars: int, number: int = 0) -> None:
        self._prompt = prompt
        self._nonce = nonce_of(prompt) or ""
        digest = hashlib.blake2b(digest_size=16, key=str(seed).encode())
        digest.update(model.encode(errors="replace") + b"\0")
        bare = prompt.replace(self._nonce, "") if self._nonce else prompt
        digest.update(bare.encode(errors="replace"))
        digest.update(b"\0%d" % number if number else b"")
        self._state = int.from_bytes(digest.digest(), "big")
        self._argument_chars = argument_chars
        self.notes_chances = False
        self.chances: list[dict[int, float]] = []
        """The probabilities by which each score of the answer was drawn, in the answer's order, if they are noted."""

    def plain(self) -> dict[str, Any]:
        """Return the object that the prompt asks for."""
        argued = {
            "nonce": self._nonce,
            "argument": self._words(self._argument_chars),
            "cited_evidence": [self._words(40)],
        }
        if _DISSENT.search(self._prompt):
            argued["dissent"] = self._dissent(self._argument_chars)
        if labels := _LABELS.search(self._prompt):
            return {**argued, "label": self._label(json.loads(labels[1]))}
        if questions := _QUESTIONS.search(self._prompt):
            return {**argued, "answers": self._answers([str(n) for n in range(1, int(questions[1]) + 1)])}
        scale = _SCALE.search(self._prompt)
        low, high = (int(scale[1]), int(scale[2])) if scale else (1, 10)
        return {**argued, "score": self._drawn(low, high)}

    def instance(self, schema: Mapping[str, Any]) -> Any:
        """Return a value that satisfies the schema."""
        return self._value(schema, schema, "", 0)

    def _value(self, schema: Any, root: Mapping[str, Any], name: str, depth: int) -> Any:
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return None
        schema = _resolved(schema, root)
        if "const" in schema:
            return schema["const"]
        if len(schema.get("enum") or ()) == 1:  # no choice, so what follows is as if nothing had been asked
            return schema["enum"][0]
        if schema.get("enum"):
            choices = schema["enum"]
            return self._label(choices) if name == "label" else choices[self._below(len(choices))]
        alternatives = schema.get("anyOf") or schema.get("oneOf")
        if alternatives:
            return self._value(alternatives[0], root, name, depth + 1)
        return self._of_kind(schema, root, name, depth)

    def _of_kind(self, schema: Mapping[str, Any], root: Mapping[str, Any], name: str, depth: int) -> Any:
        value: Any = None
        match _kind(schema):
            case "object":
                properties = schema.get("properties", {})
                if name == "answers":
                    return self._answers(list(properties))
                value = {key: self._value(part, root, key, depth + 1) for key, part in properties.items()}
            case "array":
                value = self._array(schema, root, name, depth)
            case "integer":
                value = self._number(schema, whole=True, score=name == "score")
            case "number":
                value = self._number(schema, whole=False)
            case "boolean":
                value = bool(self._below(2))
            case "string":
                value = self._text(schema, name)
        return value

    def _array(self, schema: Mapping[str, Any], root: Mapping[str, Any], name: str, depth: int) -> list[Any]:
        """Return one element for each identifier that the elements may have; else as few as allowed, but at least
        one."""
        items = schema.get("items", {})
        variants = _variants(items, root, self._prompt)
        fewest, most = int(_bound(schema, "minItems", 0)), int(_bound(schema, "maxItems", 1_000_000))
        length = min(most, max(fewest, len(variants) or 1))
        one_each = [variants[i % len(variants)] for i in range(length)] if variants else [items] * length
        return [self._value(variant, root, name, depth + 1) for variant in one_each]

    def _number(self, schema: Mapping[str, Any], *, whole: bool, score: bool = False) -> int | float:
        low = _bound(schema, "minimum", _bound(schema, "exclusiveMinimum", 0) + ("exclusiveMinimum" in schema))
        high = _bound(schema, "maximum", _bound(schema, "exclusiveMaximum", low + 10) - ("exclusiveMaximum" in schema))
        step = schema.get("multipleOf", 1)
        first = -(-low // step)
        draw = self._drawn if score and step == 1 else self._score if score else self._between
        number = draw(int(first), max(int(first), int(high // step))) * step
        return int(number) if whole else number

    def _text(self, schema: Mapping[str, Any], name: str) -> str:
        if name == "nonce" and self._nonce:
            return self._nonce
        shortest, longest = int(_bound(schema, "minLength", 0)), int(_bound(schema, "maxLength", 10**6))
        chars = min(longest, max(shortest, self._argument_chars))
        return self._dissent(chars) if name == "dissent" else self._words(chars)

    def _dissent(self, chars: int) -> str:
        """Return a chief's dissent, which is empty if all opinions in the prompt agree."""
        return self._words(chars) if len(set(_CITED_VERDICTS.findall(self._prompt))) > 1 else ""

    def _words(self, chars: int) -> str:
        start = self._below(len(_WORDS))
        filler = " ".join(_WORDS[start:] + _WORDS[:start])
        return (filler * (chars // len(filler) + 1))[:chars]

    def _drawn(self, low: int, high: int) -> int:
        """Return a score, and note how it was drawn."""
        if self.notes_chances:
            self.chances.append(self._chances(low, high))
        return self._score(low, high)

    def _chances(self, low: int, high: int) -> dict[int, float]:
        """Return the probability of each score that `_score` may return next."""
        return dict.fromkeys(range(low, high + 1), 1 / (high - low + 1))

    def _score(self, low: int, high: int) -> int:
        """Return a score that is drawn evenly."""
        return self._between(low, high)

    def _label(self, labels: Sequence[str]) -> str:
        """Return a label that is drawn evenly."""
        return labels[self._below(len(labels))]

    def _answers(self, numbers: Sequence[str]) -> dict[str, bool]:
        """Return yes or no for each question, drawn evenly."""
        return {number: bool(self._below(2)) for number in numbers}

    def _between(self, low: int, high: int) -> int:
        return low + self._below(high - low + 1)

    def _below(self, count: int) -> int:
        """Return the next number below `count`, by a 128-bit linear congruential generator (PCG64's multiplier)."""
        self._state = (self._state * 47026247687942121848144207491837523525 + 1) % 2**128
        return (self._state >> 64) % count


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `schema` with `$ref` followed and `allOf` merged."""
    for _ in range(_MAX_DEPTH):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            break
        target: Any = root
        for step in reference.removeprefix("#").strip("/").split("/"):
            target = target.get(step, {}) if isinstance(target, Mapping) else {}
        schema = target if isinstance(target, Mapping) else {}
    for part in schema.get("allOf") or ():
        schema = {**schema, **_resolved(part, root)}
    return schema


def _kind(schema: Mapping[str, Any]) -> str:
    """Return the schema's type; of several types, the first that is not null."""
    kind = schema.get("type", "object" if "properties" in schema else "null")
    if isinstance(kind, list):
        kind = next((name for name in kind if name != "null"), "null")
    return str(kind)


def _variants(items: Any, root: Mapping[str, Any], prompt: str) -> list[Mapping[str, Any]]:
    """Return the element schemas of a batch: one for each alternative, or for each value of an enumerated identifier.

    Where the prompt gives a criterion a scale of its own, its scores keep to it.
    """
    if not isinstance(items, Mapping):
        return []
    items = _resolved(items, root)
    scales = {json.loads(name): (int(low), int(high)) for name, low, high in CRITERION.findall(prompt)}
    alternatives = items.get("anyOf") or items.get("oneOf") or [items]
    variant_lists = [_forms_by_id(_resolved(alternative, root), scales) for alternative in alternatives]
    if len(variant_lists) == 1:
        return variant_lists[0]
    return [
        variant for variants, form in zip(variant_lists, alternatives, strict=True) for variant in variants or [form]
    ]


def _forms_by_id(form: Mapping[str, Any], scales: Mapping[str, tuple[int, int]]) -> list[Mapping[str, Any]]:
    """Return a schema for each value of the form's enumerated identifier."""
    properties = form.get("properties", {})
    for key, part in properties.items():
        choices = part.get("enum") if isinstance(part, Mapping) else None
        if choices and key.endswith("id"):
            return [
                {**form, "properties": {**properties, key: {"const": choice}, **_score_of(scales.get(choice))}}
                for choice in choices
            ]
    return []


def _score_of(scale: tuple[int, int] | None) -> dict[str, Any]:
    return {} if scale is None else {"score": {"type": "integer", "minimum": scale[0], "maximum": scale[1]}}


def _bound(schema: Mapping[str, Any], key: str, default: float) -> float:
    value = schema.get(key)
    if isinstance(value, int | float):
        return value
    described = _DESCRIBED.search(schema.get("description") or "")
    match = re.search(rf"\b{key}: (-?\d+)", described[0]) if described else None
    return int(match[1]) if match else default


_CHARS_PER_TOKEN = 4
_IMAGE_TOKENS = 765
_DATA = "data:"
_BACKLOG = 8192
JSON = "application/json"


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
    body: Mapping[str, Any] = field(default_factory=dict)
    """The request as it came."""
    service_tier: str = ""
    top_logprobs: int | None = None
    """How many alternatives of each token are asked for; None: no log probabilities are."""
    answers: int = 1

    @property
    def input_tokens(self) -> int:
        return tokens_of(self.prompt) + _IMAGE_TOKENS * len(self.images)


class SimulatedAnswer(NamedTuple):
    """The text of an answer, and how its scores were drawn (see `SimulatedJudge.chances`)."""

    text: str
    chances: Sequence[Mapping[int, float]] = ()


class WireFormat(Protocol):
    """One API."""

    name: str

    def read(self, body: Any) -> ParsedCall:
        """Return the call. Raises `BadRequest`."""
        ...

    def reply_body(self, call: ParsedCall, answers: Sequence[SimulatedAnswer], number: int) -> bytes:
        """Return the body of the reply to a call."""
        ...

    def error(self, status: int, message: str) -> bytes: ...


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
        tier = str(body.get("service_tier") or "")
        most = _whole(most, "max_tokens")
        answers = body.get("n", 1)
        if type(answers) is not int or not 1 <= answers <= _ANSWERS_MOST:
            raise BadRequest(f"n must be a whole number from 1 to {_ANSWERS_MOST}")
        return ParsedCall(
            _model(body), prompt, most, schema, None, _images(messages), body, tier, _alternatives(body), answers
        )  # fmt: skip

    def reply_body(self, call: ParsedCall, answers: Sequence[SimulatedAnswer], number: int) -> bytes:
        used = [tokens_of(answer.text) for answer in answers]
        return orjson.dumps(
            {
                "id": f"chatcmpl-{number}",
                "object": "chat.completion",
                "created": 1_700_000_000,
                "model": call.model,
                "choices": [
                    {
                        "index": index,
                        "message": {"role": "assistant", "content": answer.text, "refusal": None},
                        "logprobs": _logprobs(answer.text, answer.chances, call.top_logprobs),
                        "finish_reason": "length" if tokens > call.max_tokens else "stop",
                    }
                    for index, (answer, tokens) in enumerate(zip(answers, used, strict=True))
                ],
                "usage": {
                    "prompt_tokens": call.input_tokens,
                    "completion_tokens": sum(used),
                    "total_tokens": call.input_tokens + sum(used),
                },
                **({"service_tier": call.service_tier} if call.service_tier else {}),
            }
        )

    def error(self, status: int, message: str) -> bytes:
        code = "invalid_api_key" if status == 401 else None
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
        return orjson.dumps({"error": error})


class Responses(OpenAI):
    """OpenAI's Responses API."""

    name = "responses"

    def read(self, body: Any) -> ParsedCall:
        messages = _messages({"messages": _object(body).get("input")})
        words = [_words(body.get("instructions") or ""), *(_words(_object(entry).get("content")) for entry in messages)]
        form = _object(_object(body.get("text") or {}).get("format") or {})
        schema = _object(form.get("schema")) if form.get("type") == "json_schema" else None
        most = _whole(body.get("max_output_tokens", 4096), "max_output_tokens")
        if "n" in body or "messages" in body:
            raise BadRequest("Unknown parameter: 'n'" if "n" in body else "Unsupported parameter: 'messages'")
        has_logprobs = "message.output_text.logprobs" in (body.get("include") or ())
        alternatives = body.get("top_logprobs", 0) if has_logprobs else None
        tier, images = str(body.get("service_tier") or ""), _images(messages)
        return ParsedCall(_model(body), "\n".join(words), most, schema, None, images, body, tier, alternatives)

    def reply_body(self, call: ParsedCall, answers: Sequence[SimulatedAnswer], number: int) -> bytes:
        first = answers[0]
        used = tokens_of(first.text)
        is_cut = used > call.max_tokens
        logprobs = _logprobs(first.text, first.chances, call.top_logprobs)
        part = {"type": "output_text", "text": first.text, "annotations": []}
        if logprobs is not None:
            part["logprobs"] = logprobs["content"]
        status = "incomplete" if is_cut else "completed"
        message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": status, "content": [part]}
        return orjson.dumps(
            {
                "id": f"resp_{number}",
                "object": "response",
                "created_at": 1_700_000_000,
                "status": status,
                "error": None,
                "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
                "model": call.model,
                "output": [{"id": f"rs_{number}", "type": "reasoning", "summary": []}, message],
                "parallel_tool_calls": True,
                "tool_choice": "auto",
                "tools": [],
                "usage": {
                    "input_tokens": call.input_tokens,
                    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                    "output_tokens": used,
                    "output_tokens_details": {"reasoning_tokens": 0},
                    "total_tokens": call.input_tokens + used,
                },
                **({"service_tier": call.service_tier} if call.service_tier else {}),
            }
        )


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
        return ParsedCall(_model(body), prompt, most, schema, tool, _images(messages), body)

    def reply_body(self, call: ParsedCall, answers: Sequence[SimulatedAnswer], number: int) -> bytes:
        text = answers[0].text
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

    def error(self, status: int, message: str) -> bytes:
        kind = "authentication_error" if status == 401 else "invalid_request_error"
        error = {"type": kind, "message": message}
        return orjson.dumps({"type": "error", "error": error, "request_id": "req_simulated"})


_ANSWERS_MOST = 128
_SCORES = re.compile(r'"score": ?(\d{1,3})(?!\d)')
_IMPOSSIBLE = -9999.0
"""What OpenAI tells of a token that is all but impossible."""


def _alternatives(body: Mapping[str, Any]) -> int | None:
    """Return how many alternatives of each token are asked for. Raises `BadRequest` as OpenAI refuses it."""
    has_logprobs, most = body.get("logprobs") is True, body.get("top_logprobs")
    if most is not None and (type(most) is not int or not 0 <= most <= 20):
        raise BadRequest("top_logprobs must be a whole number from 0 to 20")
    if most is not None and not has_logprobs:
        raise BadRequest("top_logprobs needs logprobs to be true")
    return (most or 0) if has_logprobs else None


def _logprobs(text: str, chances: Sequence[Mapping[int, float]], most: int | None) -> dict[str, Any] | None:
    """Return the log probabilities of an answer's tokens: of four characters each, a score one of its own, as common
    tokenizers write numbers of up to three digits. An answer that does not hold as many scores as were drawn was spoilt
    on the way, and its tokens have no alternatives."""
    if most is None:
        return None
    scores = list(_SCORES.finditer(text))
    content: list[dict[str, Any]] = []
    start = 0
    for score, of_score in zip(scores, chances, strict=True) if len(scores) == len(chances) else ():
        content += [_token(part, 0.0, []) for part in _parts(text[start : score.start(1)])]
        likeliest = sorted(of_score.items(), key=lambda entry: (-entry[1], entry[0]))[:most]
        top = [_token(str(value), _log(chance)) for value, chance in likeliest]
        content.append(_token(score[1], _log(of_score.get(int(score[1]), 0.0)), top))
        start = score.end(1)
    return {"content": [*content, *(_token(part, 0.0, []) for part in _parts(text[start:]))], "refusal": None}


def _parts(text: str) -> list[str]:
    return [text[at : at + _CHARS_PER_TOKEN] for at in range(0, len(text), _CHARS_PER_TOKEN)]


def _token(text: str, logprob: float, top: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    token = {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}
    return token if top is None else {**token, "top_logprobs": top}


def _log(chance: float) -> float:
    return math.log(chance) if chance > 0 else _IMPOSSIBLE


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


class SimulatedProvider:
    """The server, in this process: `async with SimulatedProvider() as sim: ... sim.base_url`.

    It answers each call after `latency_s`, and refuses other keys than `api_key`, if that is set. `argument_chars` is
    the length of an argument.
    """

    openai: WireFormat = OpenAI()
    responses: WireFormat = Responses()
    anthropic: WireFormat = Anthropic()

    def __init__(
        self,
        *,
        seed: int = 1,
        latency_s: float = 0.0,
        argument_chars: int = 160,
        api_key: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.seed = seed
        self.api_key = api_key
        self._latency_s = latency_s
        self._argument_chars = argument_chars
        self._host = host
        self._port = port
        self._calls = 0

    async def __aenter__(self) -> Self:
        server = web.Server(self._handle, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port, backlog=_BACKLOG)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def base_url(self) -> str:
        """The address for both SDKs: the APIs answer under any prefix."""
        return f"http://{self._host}:{self._port}"

    async def serve(self, request: web.BaseRequest, wire: WireFormat, call: ParsedCall) -> web.StreamResponse:
        """Answer a call that was read."""
        if not self.has_key(request):
            return web.Response(status=401, body=wire.error(401, "Incorrect API key provided."), content_type=JSON)
        self._calls += 1
        number = self._calls
        if self._latency_s:
            await asyncio.sleep(self._latency_s)
        answers = []
        for place in range(call.answers):
            judge = SimulatedJudge(self.seed, call.model, call.prompt, self._argument_chars, place)
            answers.append(SimulatedAnswer(orjson.dumps(answer(judge, call)).decode(), judge.chances))
        return web.Response(body=wire.reply_body(call, answers, number), content_type=JSON)

    async def operate(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """Answer a request that is no call."""
        return web.Response(status=404, text="there is no such page")

    def has_key(self, request: web.BaseRequest) -> bool:
        """Return whether the request has the key, in one of the headers that OpenAI, Anthropic and Azure use."""
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        keys = (bearer, request.headers.get("x-api-key", ""), request.headers.get("api-key", ""))
        return self.api_key is None or self.api_key in keys

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0]
        if path.endswith("/chat/completions"):
            wire = self.openai
        elif path.endswith("/responses"):
            wire = self.responses
        elif path.endswith("/messages"):
            wire = self.anthropic
        else:
            return await self.operate(request, path)
        raw = await request.content.read()
        try:
            call = wire.read(orjson.loads(raw))
        except (BadRequest, AttributeError, ValueError) as error:
            return web.Response(status=400, body=wire.error(400, str(error)), content_type=JSON)
        return await self.serve(request, wire, call)


def answer(judge: SimulatedJudge, call: ParsedCall) -> Any:
    """Return what the judge answers: in the call's schema, or as the prompt describes it. It notes how scores are drawn
    if the call asks for log probabilities."""
    judge.notes_chances = call.top_logprobs is not None
    return judge.plain() if call.schema is None else judge.instance(call.schema)


_EPILOG = """\
Scores follow from the seed and the question, and mean nothing. The first line of output is JSON with the base_url, once
the server accepts connections; both SDKs take it as it is. In a checkout, `python -m lab.provider` is the same with
limits and faults.
"""


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parse = argparse.ArgumentParser(
        prog="python -m dicast.app.providers.simulated",
        description="A stand-in for an LLM provider: it speaks OpenAI's and Anthropic's APIs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_common(parse)
    parse.add_argument("--latency", type=_seconds, default=0.0, metavar="S", help="time to answer, s (default: 0)")
    parse.add_argument(
        "--answer-chars", type=int, default=160, metavar="N", help="length of an argument (default: 160)"
    )
    return parse


def add_common(parse: argparse.ArgumentParser) -> None:
    """Add the options that any such server has."""
    parse.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parse.add_argument("--port", type=int, default=0, help="port to listen on; 0 picks a free one")
    parse.add_argument("--seed", type=int, default=1, help="scores follow from it")
    parse.add_argument("--api-key", help="refuse other keys with 401")


async def serve(provider: SimulatedProvider) -> None:
    """Serve until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with provider:
        sys.stdout.write(json.dumps({"base_url": provider.base_url, "pid": os.getpid()}) + "\n")
        sys.stdout.flush()
        await stop.wait()


def run(build: Callable[[], SimulatedProvider]) -> None:
    """Build a provider and serve it until SIGINT or SIGTERM, on uvloop where there is one."""

    async def built() -> None:
        await serve(build())

    try:
        import uvloop  # noqa: PLC0415  not to be had on Windows
    except ImportError:
        asyncio.run(built())
    else:
        uvloop.run(built())


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    run(
        lambda: SimulatedProvider(
            seed=arguments.seed, latency_s=arguments.latency, argument_chars=arguments.answer_chars,
            api_key=arguments.api_key, host=arguments.host, port=arguments.port,
        )
    )  # fmt: skip
    return 0


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError
    return value


if __name__ == "__main__":
    sys.exit(main())
