"""A value with its interval, as plain data, or why it cannot be said."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict


class Figure(BaseModel):
    """A value and its interval, by `method` and from `items` items; or `reason`, which continues the sentence "cannot
    be said, because ...", and nothing else."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    value: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float = 0.95
    items: int = 0
    method: str = ""
    reason: str | None = None

    @property
    def known(self) -> bool:
        """Whether there is a value."""
        return self.reason is None

    @classmethod
    def unknown(cls, reason: str) -> Self:
        """It cannot be said."""
        return cls(reason=reason)
