"""A figure with its interval, as statistics and reports give it."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict


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
