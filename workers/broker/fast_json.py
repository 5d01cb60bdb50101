"""Reads the JSON of messages with orjson instead of kombu's own reader, which calls a hook for each object in a text.

    use_for_messages()          # from now on, in this process, for all that is of type application/json

Thousands of messages are in hand at once; orjson keeps the names of their fields once for all of them. What is read is
the same, but for integers of more than 64 bits, which become floats. Texts with kombu's typed values (dates, UUIDs,
decimals), and those that orjson refuses (NaN, lone surrogates), are read by kombu.
"""

from __future__ import annotations

from typing import Any

import orjson
from kombu.serialization import register
from kombu.utils import json

_TYPED = b"__type__"


def loads(text: bytes | bytearray | memoryview | str) -> Any:
    """Parse JSON like `kombu.utils.json.loads`, with the same errors."""
    try:
        raw = text.encode() if isinstance(text, str) else bytes(text)
        if _TYPED not in raw:
            return orjson.loads(raw)
    except ValueError:  # kombu reads it, or raises its own error
        pass
    return json.loads(text)


def use_for_messages() -> None:
    """Have kombu read JSON with `loads`; it writes as before."""
    register("json", json.dumps, loads, content_type="application/json", content_encoding="utf-8")
