"""How several judges' opinions of one item become one score.

The same rules as app/statistics/combining.py, for one item at a time and without libraries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from statistics import fmean, median
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

TRIMMED_SHARE = 0.2

Combination = Literal["mean", "median", "trimmed", "majority", "weighted", "worst"]


class PanelRule(BaseModel):
    """How the judges' scores are combined; `weights` are those of "weighted", by judge."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    combine: Combination = "mean"
    weights: dict[str, float] = Field(default_factory=dict, description="judge -> weight, 0 or more")

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, data: Any) -> Any:
        """`panel: median` is short for `panel: {combine: median}`."""
        return {"combine": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _weights_where_they_count(self) -> Self:
        if (self.combine == "weighted") != bool(self.weights):
            raise ValueError("weights belong to combine: weighted, which needs them")
        for name, weight in self.weights.items():
            if not 0 <= weight < float("inf"):
                raise ValueError(f"weights: {name!r} must be a finite number >= 0, got {weight}")
        if self.weights and not any(self.weights.values()):
            raise ValueError("weights: one at least must be above 0")
        return self

    def combined(self, scores: Mapping[str, float]) -> float | None:
        """One score of an item from each judge's; None without any (weighted: without any that has a weight)."""
        if not scores:
            return None
        if self.combine == "weighted":
            total = sum(self.weights[judge] for judge in scores)
            return sum(self.weights[judge] * score for judge, score in scores.items()) / total if total else None
        return _COMBINED[self.combine](sorted(scores.values()))


def _trimmed(scores: list[float]) -> float:
    """Without the lowest and the highest fifth, at least one each of three or more."""
    cut = max(int(len(scores) * TRIMMED_SHARE), 1) if len(scores) > 2 else 0
    return fmean(scores[cut : len(scores) - cut])


def _majority(scores: list[float]) -> float:
    """The commonest; of several as common ones the middle one, the lower of two in the middle."""
    counts = Counter(scores)
    most = max(counts.values())
    tied = sorted(score for score, count in counts.items() if count == most)
    return tied[(len(tied) - 1) // 2]


_COMBINED: Mapping[str, Callable[[list[float]], float]] = {
    "mean": fmean, "median": median, "trimmed": _trimmed, "majority": _majority, "worst": min
}  # fmt: skip
