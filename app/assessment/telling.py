"""Formats figures for sentences."""

from __future__ import annotations

from dicast.app.domain.figure import Figure


def figure_text(figure: Figure, places: int = 2) -> str:
    """Format a figure as `3.84 (3.75 to 3.93)`, or say that it is unknown, and why."""
    if figure.value is None or figure.low is None or figure.high is None:
        return f"cannot be said, because {figure.reason}"
    return f"{figure.value:.{places}f} ({figure.low:.{places}f} to {figure.high:.{places}f})"


def difference_text(figure: Figure) -> str:
    """Format a known figure as `0.80 points more (0.50 to 1.10)`, or `less`."""
    assert figure.value is not None and figure.low is not None and figure.high is not None
    word, low, high = ("more", figure.low, figure.high) if figure.value > 0 else ("less", -figure.high, -figure.low)
    return f"{abs(figure.value):.2f} points {word} ({low:.2f} to {high:.2f})"


def percent(figure: Figure) -> str:
    """Format a known share as `24 % (15 to 38)`."""
    assert figure.value is not None and figure.low is not None and figure.high is not None
    return f"{100 * figure.value:.0f} % ({100 * figure.low:.0f} to {100 * figure.high:.0f})"
