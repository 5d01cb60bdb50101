"""JSON as RFC 8259 has it, read by the standard library within bounds, with what it would let pass made visible:

* nesting deeper than `MAX_DEPTH` is refused;
* a number is an `int` if it is mathematically whole (`7`, `7.0`, `70e-1`, as JSON Schema's "integer" has it),
  else a `float`, so that 7.0000000000000000001 never rounds to 7;
* what is well-formed but cannot be trusted becomes a `Flaw` in its place, and the rest stays readable: an object with
  a duplicate key, a number of more than `MAX_DIGITS` digits, and the NaN and Infinity that Python writes.

Strings may hold lone surrogates and NUL, which JSON allows as escapes: see `dicast.app.domain.text.clean`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

MAX_DEPTH = 32
MAX_DIGITS = 40
MAX_BROKEN = 100
"""The most broken objects that are tolerated: each error of the library counts the lines before it, so this keeps time
linear in the text."""

_SPACE = " \t\r\n"
_OBJECT = re.compile(r'\{[ \t\r\n]*+["}]')


class JsonError(ValueError):
    """The text is no JSON, or exceeds the bounds. The message never quotes the text; `position` is in characters."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"{reason.removesuffix(' at')} at character {position}")
        self.position = position


@dataclass(frozen=True, slots=True)
class Flaw:
    """A placeholder for a value that cannot be relied on."""

    reason: str


Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | Flaw | None"


@dataclass(frozen=True, slots=True)
class JsonObject:
    """One outermost object in a longer text, and its source."""

    value: Json
    source: str


def loads(text: str) -> Json:
    """Parse the one JSON value in `text`, after an optional byte order mark. Raises `JsonError`."""
    body = text.removeprefix("\ufeff").strip(_SPACE)
    value, end = _decode(body, 0)
    if end != len(body):
        raise JsonError("more than one value", end)
    return value


def outermost_objects(text: str) -> Iterator[JsonObject]:
    """Yield the JSON objects in a text that may hold anything else, in order, none of them inside another.

    What opens like an object and is none (code, a set, an unfinished answer) is skipped up to where it ceases to be
    JSON, so that no character is read twice; the search ends after `MAX_BROKEN` of them.
    """
    start = broken = 0
    while broken < MAX_BROKEN and (opening := _OBJECT.search(text, start)):
        try:
            value, end = _decode(text, opening.start())
        except JsonError as error:
            start, broken = max(error.position, opening.start() + 1), broken + 1
        else:
            yield JsonObject(value, text[opening.start() : end])
            start = end


def _decode(text: str, start: int) -> tuple[Json, int]:
    """Return the value that begins at `start`, and the position after it."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise JsonError(error.msg, error.pos) from None
    except RecursionError:
        raise JsonError(f"nested deeper than {MAX_DEPTH}", len(text)) from None
    level, depth = [value], 0
    while level := [node for node in level if isinstance(node, dict | list)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise JsonError(f"nested deeper than {MAX_DEPTH}", end)
        level = [inner for node in level for inner in (node.values() if isinstance(node, dict) else node)]
    return value, end


def _object(pairs: list[tuple[str, Json]]) -> Json:
    value = dict(pairs)
    return value if len(value) == len(pairs) else Flaw("an object has a key twice")


def _number(literal: str) -> int | float | Flaw:
    too_long = Flaw(f"a number has more than {MAX_DIGITS} digits")
    if len(literal) > MAX_DIGITS:
        return too_long
    mantissa, _, exponent = literal.lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits, shift = int(whole + fraction), int(exponent or 0) - len(fraction)
    if digits == 0:
        return 0
    if shift >= 0:
        return too_long if len(str(abs(digits))) + shift > MAX_DIGITS else int(digits * 10**shift)
    if -shift <= MAX_DIGITS and digits % 10**-shift == 0:
        return int(digits // 10**-shift)
    return float(literal)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_number,
    parse_float=_number,
    parse_constant=lambda name: Flaw(f"{name} is no JSON number"),
)
