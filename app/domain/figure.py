"""A figure with its interval, as statistics and reports give it."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict

from dicast.app.domain.text import percent

Taken = Literal["items", "raters", "clusters"]
"""What an interval may take for all there is; otherwise it speaks of others like these, too."""


class Figure(BaseModel):
    """A value with its interval, computed by `method` from `items` items; or only a `reason`, which continues the
    sentence "cannot be said, because ..."."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    value: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float = 0.95
    items: int = 0
    method: str = ""
    reason: str | None = None

    @property
    def is_known(self) -> bool:
        """Whether there is a value."""
        return self.reason is None

    @classmethod
    def unknown(cls, reason: str) -> Self:
        """Return a figure without a value."""
        return cls(reason=reason)

    @classmethod
    def combined(
        cls, value: float | None, method: str, *, low: float | None = None, high: float | None = None, items: int = 0
    ) -> Self:
        """Return a figure that is made of others by `method`, without an interval unless there are `low` and `high`.
        What is estimated comes from `dicast.app.analysis.scores.figure`."""
        return cls(value=value, low=low, high=high, items=items, method=method)


def figure_text(figure: Figure, places: int = 2) -> str:
    """Format a figure as `3.84 (3.75 to 3.93)`, or say that it is unknown, and why."""
    return interval_text(figure, places) or f"cannot be said, because {figure.reason or 'no reason is known'}"


def interval_text(figure: Figure, places: int = 2, *, to: str = " to ", signed: bool = False) -> str | None:
    """Format a figure as `3.84 (3.75 to 3.93)`; None if it is unknown."""
    if figure.value is None or figure.low is None or figure.high is None:
        return None
    form = f"{'+' if signed else ''}.{places}f"
    return f"{figure.value:{form}} ({figure.low:{form}}{to}{figure.high:{form}})"


def share_text(figure: Figure) -> str | None:
    """Format a share as `24 % (15 to 38)`; None if it is unknown."""
    if figure.value is None or figure.low is None or figure.high is None:
        return None
    return f"{percent(figure.value)} ({100 * figure.low:.0f} to {100 * figure.high:.0f})"
