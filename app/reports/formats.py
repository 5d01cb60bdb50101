"""Formats texts, numbers and figures for people: one way for each, in every report."""

from __future__ import annotations

from collections.abc import Sequence

from dicast.app.domain.figure import Figure
from dicast.app.domain.text import printable

NAME_CHARS = 80
TEXT_CHARS = 500


def one_line(text: str, limit: int = TEXT_CHARS) -> str:
    """Return any text on one line of at most `limit` characters, without characters that move or reorder what is
    read."""
    return printable(" ".join(text[: 4 * limit].split()), limit)


def name(text: str) -> str:
    """Return a name, short enough for a table."""
    return one_line(text, NAME_CHARS)


def number(value: float | None, places: int = 2) -> str:
    """Format a number as `4.20`, or as a dash if it is unknown."""
    return "–" if value is None else f"{value:,.{places}f}"


def percent(share: float | None, places: int = 0) -> str:
    """Format a share as `42 %` without a line break, or as a dash if it is unknown."""
    return "–" if share is None else f"{100 * share:.{places}f}\u00a0%"


def count(value: int, singular: str, plural: str | None = None) -> str:
    """Format a count as `1 judge` or `1,200 judges`."""
    return f"{value:,} {singular if value == 1 else plural or singular + 's'}"


def figure(estimate: Figure | None, places: int = 2) -> str:
    """Format a figure as `0.31 (0.10 to 0.52)`, or say why it is unknown."""
    if estimate is None:
        return "–"
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return f"cannot be said: {one_line(estimate.reason or 'no reason is known', 200)}"
    return f"{estimate.value:.{places}f} ({estimate.low:.{places}f} to {estimate.high:.{places}f})"


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


def joined(parts: Sequence[str]) -> str:
    """Join parts as `a`, `a and b` or `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""
