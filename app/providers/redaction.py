"""Makes messages safe to log: one line without keys, judged texts and control characters."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dicast.app.domain.text import excerpt

MAX_MESSAGE_CHARS = 300
_SHOWN_CHARS = 270  # leaves room for the note that something was cut off

_MASK = "[hidden]"
_SHORTEST_SECRET = 8
_SHORTEST_ECHO = 12
_SHORTEST_KEY_PIECE = 6
_LOOKS_LIKE_A_KEY = re.compile(
    r"(?i)\b(?:sk|pk|rk|gsk|xai|key|api[-_]?key)[-_:=][\w*.-]{4,}|\bbearer\s+\S+",
)


class Redactor:
    """Cleans messages of a provider. `secrets` are the values that are sent with each call."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = tuple(secret for secret in secrets if len(secret) >= _SHORTEST_SECRET)

    def clean(self, message: str, judged_text: str = "") -> str:
        """Return `message` without pieces of a key (6 characters or more) or of the judged text (12 or more).

        The result is one printable line of at most MAX_MESSAGE_CHARS characters.
        """
        cut = message[: 4 * _SHOWN_CHARS]
        for secret in self._secrets:
            cut = _without(cut, secret, _SHORTEST_KEY_PIECE)
        cut = _LOOKS_LIKE_A_KEY.sub(_MASK, cut)
        return excerpt(_without(cut[: 2 * _SHOWN_CHARS], judged_text, _SHORTEST_ECHO), _SHOWN_CHARS)


def _without(message: str, source: str, shortest: int) -> str:
    """Replace every run of at least `shortest` characters in `message` that also stands in `source`."""
    pieces: list[str] = []
    start = 0
    while start < len(message):
        end = start + shortest
        if end <= len(message) and message[start:end] in source:
            while end < len(message) and message[start : end + 1] in source:
                end += 1
            pieces.append(_MASK)
            start = end
        else:
            pieces.append(message[start])
            start += 1
    return "".join(pieces)
