"""Task messages that only holders of a shared secret can write: HMAC-SHA256 over the body and what names the task.

A broker that others can write to cannot be made to run what they like. It can be made to run again what was once
signed; that every task here may be repeated without harm is the ledger's promise.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any

import orjson

SIGNATURE = "dicast-signature"
_SIGNED = ("task", "id", "group", "retries", "eta", "expires", "timelimit", "dicast")


def signature(key: str, headers: Mapping[str, Any], body: str | bytes) -> str:
    """The signature of a message; `body` as it travels."""
    named = orjson.dumps({name: headers.get(name) for name in _SIGNED}, option=orjson.OPT_SORT_KEYS, default=str)
    text = body.encode() if isinstance(body, str) else bytes(body)
    return hmac.digest(key.encode(), b"%d:%b%b" % (len(named), named, text), "sha256").hex()


def is_signed(key: str, headers: Mapping[str, Any], body: str | bytes) -> bool:
    """Whether a holder of the key wrote the message. Takes as long for any wrong signature."""
    given = headers.get(SIGNATURE)
    try:
        return isinstance(given, str) and hmac.compare_digest(signature(key, headers, body).encode(), given.encode())
    except (TypeError, ValueError):  # what cannot be written down again, as lone surrogates, nobody has signed
        return False
