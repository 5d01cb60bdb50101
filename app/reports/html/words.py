"""Formats texts, numbers and figures for the HTML report."""

from __future__ import annotations

from collections.abc import Sequence

from dicast.app.domain.figure import Figure
from dicast.app.domain.printable import printable

NAME_CHARS = 80
TEXT_CHARS = 500


def shown(text: str, limit: int = TEXT_CHARS) -> str:
    """Return any text on one line of at most `limit` characters, without characters that move or reorder what is
    read."""
    return printable(" ".join(text[: 4 * limit].split()), limit)


def name(text: str) -> str:
    """Return a name, short enough for a table."""
    return shown(text, NAME_CHARS)


def number(value: float | None, places: int = 2) -> str:
    """Format a number as `4.20`, or as a dash if it is unknown."""
    return "–" if value is None else f"{value:,.{places}f}"


def percent(share: float | None, places: int = 0) -> str:
    """Format a share as `42 %` without a line break, or as a dash if it is unknown."""
    return "–" if share is None else f"{100 * share:.{places}f}\u00a0%"


def count(value: int, one: str, many: str | None = None) -> str:
    """Format a count as `1 judge` or `1,200 judges`."""
    return f"{value:,} {one if value == 1 else many or one + 's'}"


def figure(found: Figure | None, places: int = 2) -> str:
    """Format a figure as `0.31 (0.10 to 0.52)`, or say why it is unknown."""
    if found is None:
        return "–"
    if found.value is None or found.low is None or found.high is None:
        return f"cannot be said: {shown(found.reason or 'no reason is known', 200)}"
    return f"{found.value:.{places}f} ({found.low:.{places}f} to {found.high:.{places}f})"


def chance(p: float | None) -> str:
    """Format a p-value."""
    return "–" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def duration(seconds: float) -> str:
    """Format a duration as `12.0 s`, `3 min 20 s` or `2 h 05 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def listed(parts: Sequence[str]) -> str:
    """Join parts as `a`, `a and b` or `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""
