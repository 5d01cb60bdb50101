"""Makes text from models and callers safe to show."""

from __future__ import annotations

import re
import unicodedata

_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
# A spreadsheet may skip what stands before the sign, and reads the full-width signs as the plain ones.
_FORMULA = re.compile(r"[\s\x00-\x1f\u200b-\u200f\ufeff]*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")


def printable(text: str, limit: int | None = None, ellipsis: str = "…") -> str:
    """Return one line that neither moves the cursor nor reorders what is read.

    Control, format and surrogate characters and line separators are shown as `\\xNN` or `\\uNNNN`. `limit` is the most
    characters shown; what is cut ends in `ellipsis`.
    """
    if limit is not None and len(text) > 4 * limit:
        text = text[: 4 * limit]  # what follows cannot be shown, so it need not be looked at
    if not (text.isascii() and text.isprintable()):
        text = "".join(_escaped(c) if unicodedata.category(c) in _INVISIBLE else c for c in text)
    return text if limit is None or len(text) <= limit else text[: max(0, limit - len(ellipsis))] + ellipsis


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def cell(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula: a risky one gets a leading apostrophe."""
    return f"'{text}" if _FORMULA.match(text) else text
