"""What scores there may be."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from dicast.app.domain.fields import Strict

MAX_SCALE_WIDTH = 1000
MAX_SCORE = 10**9


class Scale(Strict):
    """Whole numbers from `min` to `max`, both allowed."""

    min: int = Field(default=1, ge=-MAX_SCORE, le=MAX_SCORE)
    max: int = Field(default=10, ge=-MAX_SCORE, le=MAX_SCORE)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max <= self.min:
            raise ValueError(f"scale.max must be > scale.min ({self.min}), got {self.max}")
        if self.max - self.min > MAX_SCALE_WIDTH:
            raise ValueError(f"scale must span at most {MAX_SCALE_WIDTH}, got {self.max - self.min}")
        return self
