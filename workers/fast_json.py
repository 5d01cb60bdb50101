"""JSON of messages read by orjson, in place of kombu's own reading, which calls a hook for each object in a text.

    use_for_messages()          # from now on, in this process, for all that is of type application/json

What is read is the same. Texts with kombu's typed values (dates, UUIDs, decimals), with integers of more than 64 bits,
or that orjson refuses (NaN, lone surrogates) are read by kombu.
"""

from __future__ import annotations

import re
from typing import Any

import orjson
from kombu.serialization import register
from kombu.utils import json

_KOMBU_ONLY = re.compile(rb"__type__|\d{19}")


def loads(text: bytes | memoryview | str) -> Any:
    """As `kombu.utils.json.loads`, with the same errors."""
    try:
        raw = text.encode() if isinstance(text, str) else text
        if not _KOMBU_ONLY.search(raw):
            return orjson.loads(raw)
    except ValueError:  # kombu reads it, or tells what is wrong
        pass
    return json.loads(text)


def use_for_messages() -> None:
    """Have kombu read with `loads`; it writes as before."""
    register("json", json.dumps, loads, content_type="application/json", content_encoding="utf-8")
