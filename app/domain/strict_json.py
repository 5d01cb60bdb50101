"""JSON as RFC 8259 has it, within bounds, in time linear in the text and without recursion.

The standard library's decoder recurses into nested brackets, lets the last of two equal keys win, rounds numbers and
cannot say where an object in the middle of a chat ends. So this is a scanner of its own, with the same verdict on
what is well-formed (the tests hold the two against each other) and three differences in what it yields:

* nesting deeper than `max_depth` is refused;
* a number is an `int` if it is mathematically whole (`7`, `7.0`, `70e-1`, as JSON Schema's "integer" has it),
  else a `float`, so that 7.0000000000000000001 never rounds to 7;
* what is well-formed but cannot be trusted becomes a `Flaw` in its place, and the rest stays readable: an object with
  a duplicate key, a number of more than `max_digits` digits, and the NaN and Infinity that Python writes.

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

_SPACE = re.compile(r"[ \t\r\n]*+")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]++|\\.)*+"')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
_WORD = re.compile(r"true|false|null|NaN|-?Infinity")
_CONSTANTS = {"true": True, "false": False, "null": None}
_OBJECT = re.compile(r'\{[ \t\r\n]*+["}]')


class JsonError(ValueError):
    """The text is no JSON, or exceeds the bounds. The message never quotes the text; `position` is in characters."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"{reason} at character {position}")
        self.position = position


@dataclass(frozen=True, slots=True)
class Flaw:
    """Stands where a value was that nobody may rely on."""

    reason: str


Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | Flaw | None"


@dataclass(frozen=True, slots=True)
class Found:
    """One outermost object in a longer text, and its source."""

    value: Json
    source: str


def loads(text: str, *, max_depth: int = MAX_DEPTH, max_digits: int = MAX_DIGITS) -> Json:
    """The one JSON value that `text` is, after an optional byte order mark; raises `JsonError`."""
    start = 1 if text.startswith("\ufeff") else 0
    value, end = _scan(text, _skip(text, start), max_depth, max_digits)
    if (end := _skip(text, end)) != len(text):
        raise JsonError("more than one value", end)
    return value


def outermost_objects(text: str, *, max_depth: int = MAX_DEPTH, max_digits: int = MAX_DIGITS) -> Iterator[Found]:
    """The JSON objects in a text that may hold anything else, in order, none of them inside another.

    What opens like an object and is none (code, a set, an unfinished answer) is passed over up to the place where it
    ceases to be JSON, so that no character is read twice.
    """
    start = 0
    while opening := _OBJECT.search(text, start):
        try:
            value, end = _scan(text, opening.start(), max_depth, max_digits)
        except JsonError as error:
            start = max(error.position, opening.start() + 1)
        else:
            yield Found(value, text[opening.start() : end])
            start = end


@dataclass(slots=True)
class _Open:
    """A container whose closing bracket has not come yet. `keys` is None for an array."""

    keys: list[str] | None
    values: list[Json]

    def close(self) -> Json:
        if self.keys is None:
            return self.values
        value = dict(zip(self.keys, self.values, strict=True))
        return value if len(value) == len(self.keys) else Flaw("an object has a key twice")


def _scan(text: str, start: int, max_depth: int, max_digits: int) -> tuple[Json, int]:
    """The value that begins at `start`, and the position behind it."""
    stack: list[_Open] = []
    pos = start
    while True:
        value: Json
        mark = text[pos : pos + 1]
        if mark in ("{", "["):
            if len(stack) == max_depth:
                raise JsonError(f"nested deeper than {max_depth}", pos)
            stack.append(_Open([] if mark == "{" else None, []))
            pos = _skip(text, pos + 1)
            if text[pos : pos + 1] != ("}" if mark == "{" else "]"):
                pos = _key(text, pos, stack[-1])
                continue
            value, pos = stack.pop().close(), pos + 1
        else:
            value, pos = _scalar(text, pos, max_digits)
        while stack:
            inner = stack[-1]
            inner.values.append(value)
            pos = _skip(text, pos)
            mark = text[pos : pos + 1]
            if mark == ",":
                pos = _key(text, _skip(text, pos + 1), inner)
                break
            if mark != ("]" if inner.keys is None else "}"):
                raise JsonError("expected a comma or the closing bracket", pos)
            value, pos = stack.pop().close(), pos + 1
        else:
            return value, pos


def _key(text: str, pos: int, container: _Open) -> int:
    """Read a key and its colon if `container` is an object; the position of the value that follows."""
    if container.keys is None:
        return pos
    key, pos = _string(text, pos)
    container.keys.append(key)
    pos = _skip(text, pos)
    if text[pos : pos + 1] != ":":
        raise JsonError("expected a colon", pos)
    return _skip(text, pos + 1)


def _scalar(text: str, pos: int, max_digits: int) -> tuple[Json, int]:
    if text[pos : pos + 1] == '"':
        return _string(text, pos)
    if word := _WORD.match(text, pos):
        name = word.group()
        return _CONSTANTS[name] if name in _CONSTANTS else Flaw(f"{name} is no JSON number"), word.end()
    if literal := _NUMBER.match(text, pos):
        return _number(literal.group(), max_digits), literal.end()
    raise JsonError("expected a value", pos)


def _string(text: str, pos: int) -> tuple[str, int]:
    literal = _STRING.match(text, pos)
    if literal is None:
        raise JsonError("expected a string, with control characters escaped", pos)
    source = literal.group()
    if "\\" not in source:
        return source[1:-1], literal.end()
    try:
        return json.loads(source), literal.end()
    except json.JSONDecodeError as error:
        raise JsonError("a string has an unknown escape", pos + error.pos) from None


def _number(literal: str, max_digits: int) -> int | float | Flaw:
    too_long = Flaw(f"a number has more than {max_digits} digits")
    if len(literal) > max_digits:
        return too_long
    mantissa, _, exponent = literal.lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits, shift = int(whole + fraction), int(exponent or 0) - len(fraction)
    if digits == 0:
        return 0
    if shift >= 0:
        return too_long if len(str(abs(digits))) + shift > max_digits else int(digits * 10**shift)
    if -shift <= max_digits and digits % 10**-shift == 0:
        return int(digits // 10**-shift)
    return float(literal)


def _skip(text: str, pos: int) -> int:
    space = _SPACE.match(text, pos)
    assert space is not None  # the pattern matches the empty string
    return space.end()
