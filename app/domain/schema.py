"""JSON schemas that ask a judge for its answer through a structured channel.

Every answer begins with the call's nonce, which ties it to its question. Some providers compile a schema and cache it:
a new schema then costs seconds, and the prompt cache may begin with it. For these the schema holds nothing that differs
between calls; the nonce may be any text, and the model copies it from the question. Where the schema becomes a grammar
for a single call, it may contain the nonce itself, so that even a model too weak to copy it must write it.

Keys stand in the order in which a constrained model writes them: argument and quotes come before the score. A score is
a number under `score`, a label or preference is under `label`, and the answers to a checklist, or to an item's own
criteria, are under `answers`, keyed by number. Items with as many criteria share one schema.

Lengths are bounded so that even a weak model finishes its answer within `max_tokens`. The bounds apply to the model and
not to the reader: app/domain/verdict.py accepts longer arguments from providers that do not support such bounds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from dicast.app.domain.dimension import Dimension, Scale
from dicast.app.domain.nonce import NONCE_CHARS

CHARACTERS_PER_TOKEN = 2
"""A cautious guess: English has about four, escaped or non-Latin text far fewer."""

FRAME_TOKENS = 60
"""An opinion's braces, keys, white space, nonce and score."""
ANSWER_TOKENS = 7
"""One more of them for each of an item's own criteria: its number, and true or false."""

LENGTHS = frozenset({"minLength", "maxLength"})
"""Keywords that OpenAI's strict mode does not document; pass them to `without` for such a provider."""

Schema = dict[str, Any]


class AnswerLimits(NamedTuple):
    """The most characters of one opinion's argument and of each of its quotes, and the most quotes."""

    argument_chars: int
    quote_chars: int
    quotes: int


def answer_limits(max_tokens: int, opinions: int = 1, criteria: int = 0) -> AnswerLimits:
    """Return the limits within which `opinions` opinions end within `max_tokens`, all of them together with answers on
    so many `criteria` of the item: half of what is left for the arguments, half for the quotes."""
    characters = ((max_tokens - ANSWER_TOKENS * criteria) // opinions - FRAME_TOKENS) * CHARACTERS_PER_TOKEN
    return AnswerLimits(
        argument_chars=min(max(characters // 2, 40), 1200),
        quote_chars=min(max(characters // 4, 20), 400),
        quotes=2,
    )


def single_schema(scale: Scale, limits: AnswerLimits, nonce: str | None = None, *, dissent: bool = False) -> Schema:
    """Return the schema of one opinion: `{"nonce", "argument", "cited_evidence", "score"}`, plus `dissent` for a chief.

    With a `nonce`, only that nonce is valid. Without one, all calls with the same scale share the returned schema, so
    it must not be modified.
    """
    schema = _single_schema(scale.min, scale.max, scale.options, len(scale.questions), limits, dissent)
    return schema if nonce is None else _with_fixed_nonce(nonce, schema)


@lru_cache
def _single_schema(
    lowest: int, highest: int, options: tuple[str, ...], questions: int, limits: AnswerLimits, dissent: bool
) -> Schema:  # fmt: skip
    return _object(
        {
            "nonce": _NONCE,
            **_argument_properties(limits, dissent=dissent),
            **_verdict_properties(lowest, highest, options, questions),
        }
    )


def batch_schema(
    dimensions: Sequence[Dimension], limits: AnswerLimits, nonce: str | None = None, *, dissent: bool = False
) -> Schema:
    """Return the schema of all opinions on one item: `{"nonce", "opinions": [{"criterion_id", "argument", ...}, ...]}`;
    `nonce` and `dissent` are as in `single_schema`.

    Criteria with numeric scales share one form, whose score has the bounds of the widest scale; the reader checks each
    score against its own scale. Other criteria have one form per distinct scale.
    """
    forms = [_object(entry) for entry in _opinion_schemas(dimensions, limits, dissent=dissent)]
    opinions = {
        "type": "array",
        "items": forms[0] if len(forms) == 1 else {"anyOf": forms},
        "minItems": len(dimensions),
        "maxItems": len(dimensions),
    }
    schema = _object({"nonce": _NONCE, "opinions": opinions})
    return schema if nonce is None else _with_fixed_nonce(nonce, schema)


def _opinion_schemas(dimensions: Sequence[Dimension], limits: AnswerLimits, *, dissent: bool) -> list[Schema]:
    groups: dict[tuple[tuple[str, ...], int], list[Dimension]] = {}
    for dimension in dimensions:
        groups.setdefault((dimension.scale.options, len(dimension.scale.questions)), []).append(dimension)
    return [
        {
            "criterion_id": {"type": "string", "enum": [d.id for d in group]},
            **_argument_properties(limits, dissent=dissent),
            **_verdict_properties(min(d.scale.min for d in group), max(d.scale.max for d in group), options, questions),
        }
        for (options, questions), group in groups.items()
    ]


def without(schema: Mapping[str, Any], keywords: Collection[str]) -> Schema:
    """Return a copy that lacks `keywords` at every level, for a provider that rejects them. Property names are kept."""

    def strip(node: Any, *, names: bool = False) -> Any:
        if isinstance(node, Mapping):
            return {
                key: strip(value, names=key == "properties" and not names)
                for key, value in node.items()
                if names or key not in keywords
            }
        return [strip(value) for value in node] if isinstance(node, list) else node

    return dict(strip(schema))


_NONCE: Schema = {"type": "string", "minLength": NONCE_CHARS, "maxLength": NONCE_CHARS}


def _with_fixed_nonce(nonce: str, schema: Schema) -> Schema:
    return {**schema, "properties": {**schema["properties"], "nonce": {"type": "string", "enum": [nonce]}}}


def _argument_properties(limits: AnswerLimits, *, dissent: bool) -> Schema:
    properties: Schema = {
        "argument": {"type": "string", "minLength": 20, "maxLength": limits.argument_chars},
        "cited_evidence": {
            "type": "array",
            "items": {"type": "string", "minLength": 1, "maxLength": limits.quote_chars},
            "maxItems": limits.quotes,
        },
    }
    return properties | {"dissent": {"type": "string", "maxLength": limits.argument_chars}} if dissent else properties


def _verdict_properties(lowest: int, highest: int, options: tuple[str, ...], questions: int) -> Schema:
    if options:
        return {"label": {"type": "string", "enum": list(options)}}
    if questions:
        return {"answers": _object({str(number): {"type": "boolean"} for number in range(1, questions + 1)})}
    return {"score": {"type": "integer", "minimum": lowest, "maximum": highest}}


def _object(properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
