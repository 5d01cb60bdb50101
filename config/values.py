"""Strict parsing of the text of one setting: a silent conversion would hide a mistake."""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import BeforeValidator

_TRUTHS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
SECRET = "secret"  # noqa: S105  (a mark on the fields that hold one)


def _whole(raw: str) -> int:
    """Parse digits only: `5.0`, `1e1`, ` 5 ` and `5_0` are mistakes that a silent conversion would hide."""
    if not raw.removeprefix("-").isdecimal() or not raw.isascii() or len(raw) > 20:
        raise ValueError(f"must be a whole number, got {raw!r}")
    return int(raw)


def _number(raw: str) -> float:
    try:
        value = math.nan if raw != raw.strip() or "_" in raw or not raw.isascii() else float(raw)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"must be a number, got {raw!r}")
    return value


def _truth(raw: str) -> bool:
    if raw.lower() not in _TRUTHS:
        raise ValueError(f"must be true or false, got {raw!r}")
    return _TRUTHS[raw.lower()]


def _text(raw: str) -> str:
    if not raw.strip():
        raise ValueError("must not be empty")
    return raw


_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?", re.ASCII)


def label(text: str) -> tuple[str, str]:
    """Return a label's name and value. Raises ValueError for what is no `k=v`."""
    name, separator, value = text.partition("=")
    if not (separator and _LABEL.fullmatch(name) and _LABEL.fullmatch(value)):
        raise ValueError(f"must be labels like region=eu, of letters, digits, '.', '_', '/' and '-', got {text!r}")
    return name, value


def _labels(raw: str) -> str:
    """Return the text after checking that it holds labels."""
    for pair in filter(None, map(str.strip, raw.split(","))):
        label(pair)
    return raw


Labels = Annotated[str, BeforeValidator(_labels)]
Count = Annotated[int, BeforeValidator(_whole)]
Number = Annotated[float, BeforeValidator(_number)]
Flag = Annotated[bool, BeforeValidator(_truth)]
Text = Annotated[str, BeforeValidator(_text)]
Secret = Annotated[str | None, BeforeValidator(lambda raw: _text(raw) if raw else None), SECRET]
OptionalText = Annotated[str | None, BeforeValidator(lambda raw: _text(raw) if raw else None)]
