"""Task messages that only holders of a shared secret can write: HMAC-SHA256 over the body and what names the task.

So whoever can write to the broker cannot have arbitrary tasks run. They can have a signed message run again; the ledger
guarantees that every task here may be repeated without harm.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any

import orjson

SIGNATURE = "dicast-signature"
_SIGNED = ("task", "id", "group", "retries", "eta", "expires", "timelimit", "dicast")


def signature(key: str, headers: Mapping[str, Any], body: str | bytes) -> str:
    """Return the signature of a message, with `body` as it is transmitted."""
    signed_headers = orjson.dumps(
        {name: headers.get(name) for name in _SIGNED}, option=orjson.OPT_SORT_KEYS, default=str
    )
    text = body.encode() if isinstance(body, str) else bytes(body)
    return hmac.digest(key.encode(), b"%d:%b%b" % (len(signed_headers), signed_headers, text), "sha256").hex()


def is_signed(key: str, headers: Mapping[str, Any], body: str | bytes) -> bool:
    """Return whether a holder of the key wrote the message, in constant time for wrong signatures."""
    claimed = headers.get(SIGNATURE)
    try:
        return isinstance(claimed, str) and hmac.compare_digest(
            signature(key, headers, body).encode(), claimed.encode()
        )
    except (TypeError, ValueError):  # what cannot be written down again, as lone surrogates, nobody has signed
        return False
