"""Formats texts, numbers and figures for people: one way for each, in every report."""

from __future__ import annotations

from dicast.app.domain import text as plain
from dicast.app.domain.figure import Figure, figure_text
from dicast.app.domain.text import printable

DASH = "–"

NAME_CHARS = 80
TEXT_CHARS = 500


def one_line(text: str, limit: int = TEXT_CHARS) -> str:
    """Return any text on one line of at most `limit` characters, without characters that move or reorder what is
    read."""
    return printable(" ".join(text[: 4 * limit].split()), limit)


def name(text: str) -> str:
    """Return a name, short enough for a table."""
    return one_line(text, NAME_CHARS)


def number(value: float | None, places: int = 2, *, unknown: str = DASH) -> str:
    """Format a number as `4.20`, or as a dash if it is unknown."""
    return unknown if value is None else f"{value:,.{places}f}"


def percent(share: float | None, places: int = 0) -> str:
    """Format a share as `42 %` without a line break, or as a dash if it is unknown."""
    return DASH if share is None else plain.percent(share, places).replace(" ", "\u00a0")


def figure(estimate: Figure | None, places: int = 2) -> str:
    """Format a figure as `0.31 (0.10 to 0.52)`, or say why it is unknown."""
    return DASH if estimate is None else one_line(figure_text(estimate, places), 200)


def chance(p: float | None, *, unknown: str = DASH) -> str:
    """Format a p-value."""
    return unknown if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def duration(seconds: float) -> str:
    """Format a duration as `12.0 s`, `3 min 20 s` or `2 h 05 min`."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
