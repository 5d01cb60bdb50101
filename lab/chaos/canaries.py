"""Planted where secrets and judged texts are: they may turn up in the ledger's own keys (texts) and nowhere else."""

from __future__ import annotations

import base64
import contextlib
import re

PASSWORD = "canary-password-7f3a91"
API_KEY = "canary-key-5b20c4"
TEXT = "canary-text-e81d37"
HEADER = "canary-header-19c6ad"
SECRETS = (PASSWORD, API_KEY, TEXT, HEADER)

_PACKED = re.compile(r'"body": ?\\?"([A-Za-z0-9+/=]+)')


def found_in(text: str) -> set[str]:
    """The canaries in a text, or in the bodies of messages in it, which the broker's client packs."""
    bodies = [text]
    for packed in _PACKED.findall(text):
        with contextlib.suppress(ValueError):
            bodies.append(base64.b64decode(packed).decode("utf-8", "replace"))
    return {secret for secret in SECRETS if any(secret in body for body in bodies)}
