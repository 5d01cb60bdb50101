"""Formats figures for sentences."""

from __future__ import annotations

from dicast.app.domain.figure import Figure


def told(found: Figure, places: int = 2) -> str:
    """Format a figure as `3.84 (3.75 to 3.93)`, or say that it is unknown, and why."""
    if found.value is None or found.low is None or found.high is None:
        return f"cannot be said, because {found.reason}"
    return f"{found.value:.{places}f} ({found.low:.{places}f} to {found.high:.{places}f})"


def how_far(found: Figure) -> str:
    """Format a known figure as `0.80 points more (0.50 to 1.10)`, or `less`."""
    assert found.value is not None and found.low is not None and found.high is not None
    word, low, high = ("more", found.low, found.high) if found.value > 0 else ("less", -found.high, -found.low)
    return f"{abs(found.value):.2f} points {word} ({low:.2f} to {high:.2f})"


def percent(found: Figure) -> str:
    """Format a known share as `24 % (15 to 38)`."""
    assert found.value is not None and found.low is not None and found.high is not None
    return f"{100 * found.value:.0f} % ({100 * found.low:.0f} to {100 * found.high:.0f})"
