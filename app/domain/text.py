"""Two ways to make untrusted text safe: `clean` to store it, `excerpt` to log it."""

from __future__ import annotations

import re

_LINE_END = re.compile(r"\r\n?")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


def clean(text: str) -> str:
    """Return `text` without what a store, JSON, Parquet or a terminal could choke on.

    Lone surrogates become U+FFFD, line ends become LF, control characters other than tab and LF are dropped. The result
    encodes to UTF-8, and cleaning it again changes nothing.
    """
    return _CONTROL.sub("", _LINE_END.sub("\n", _SURROGATE.sub(_REPLACEMENT, text)))


def excerpt(text: str, limit: int) -> str:
    """Return `text` as one line for a log: unprintable characters escaped, cut to about `limit` characters with a
    note."""
    head = "".join(char if char.isprintable() else _escaped_match(char) for char in text[:limit])
    if len(head) <= limit and len(text) <= limit:
        return head
    return f"{head[:limit]}... ({len(text)} characters)"


def _escaped_match(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
