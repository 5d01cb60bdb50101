"""A job's question, which ends the job as soon as it is answered, and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dicast.app.domain.item import Item
from dicast.app.domain.text import Id, MetadataName, Strict
from dicast.errors import alternatives

PAGE = 25
"""The fewest further items that are judged between two looks; at least a twentieth of those judged so far."""

KINDS = ("mean_at_least", "share", "difference", "width")


class AskedShare(Strict):
    """Asks whether at least a share of the items gets at least a score."""

    at_least_score: float = Field(allow_inf_nan=False)
    share_at_least: float = Field(gt=0, lt=1, allow_inf_nan=False)


class AskedDifference(Strict):
    """Asks whether the first group's mean exceeds the second's by at least so much."""

    by: MetadataName = Field(description="the items' metadata that tells the groups apart")
    of: list[str] = Field(min_length=2, max_length=2)
    at_least: float = Field(default=0.0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _two(self) -> Self:
        if self.of[0] == self.of[1]:
            raise ValueError(f"of: two groups are compared, got {self.of[0]!r} twice")
        return self

    def group(self, item: Item) -> int | None:
        """Return 0 or 1 for an item of the two groups, None for any other."""
        value = item.metadata.get(self.by)
        return self.of.index(value) if isinstance(value, str) and value in self.of else None


class Question(Strict):
    """What a job is to find out about the panel's score of a dimension.

    Exactly one of `KINDS` is asked. Items are judged in random order until an interval that holds however often one
    looks answers the question, or until `most_calls` are spent.
    """

    dimension: Id | None = Field(default=None, description="None: the job's one dimension")
    mean_at_least: float | None = Field(default=None, allow_inf_nan=False, description="is the mean at least this?")
    share: AskedShare | None = Field(default=None, description="do so many items get so good a score?")
    difference: AskedDifference | None = Field(default=None, description="is one group's mean so much above another's?")
    width: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="how large is the mean, to an interval no wider than this?"
    )
    confidence: float = Field(default=0.95, ge=0.5, le=0.9999, description="that the answer is right")
    most_calls: int | None = Field(default=None, ge=1, description="begin no item beyond so many calls")

    @model_validator(mode="after")
    def _check_one_kind(self) -> Self:
        kinds = [name for name in KINDS if getattr(self, name) is not None]
        if len(kinds) != 1:
            raise ValueError(f"ask one of {', '.join(KINDS)}, got {' and '.join(kinds) or 'none'}")
        return self

    def check(self, scales: Mapping[str, tuple[int, int]]) -> None:
        """Raise ValueError unless the question fits dimensions with these ends of their scales."""
        if self.dimension is None and len(scales) > 1:
            raise ValueError(f"question.dimension: name one of {', '.join(scales)}")
        if self.dimension is not None and self.dimension not in scales:
            hint = alternatives(self.dimension, scales)
            raise ValueError(f"question.dimension: {self.dimension!r} is no dimension of this job{hint}")
        name = self.dimension or next(iter(scales))
        low, high = scales[name]
        bounds = {
            "mean_at_least": (self.mean_at_least, low, high),
            "share.at_least_score": (self.share.at_least_score if self.share else None, low, high),
            "difference.at_least": (self.difference.at_least if self.difference else None, low - high, high - low),
            "width": (self.width, 0, high - low),
        }
        for field, (value, least, most) in bounds.items():
            if value is not None and not least <= value <= most:
                raise ValueError(f"question.{field}: must be from {least} to {most} (scale of {name!r}), got {value:g}")

    def sentence(self, dimension: str) -> str:
        """Return the question as a person would ask it."""
        if self.mean_at_least is not None:
            return f"is the mean of {dimension} at least {self.mean_at_least:g}?"
        if self.share is not None:
            share, score = self.share.share_at_least, self.share.at_least_score
            return f"do at least {share:.4g} of the items have {dimension} of {score:g} or more?"
        if self.difference is not None:
            first, second = self.difference.of
            return f"is {first} better than {second} by at least {self.difference.at_least:g} in {dimension}?"
        return f"what is the mean of {dimension}, to an interval no wider than {self.width:g}?"


State = Literal["yes", "no", "known", "spent", "open"]


class JobAnswer(BaseModel):
    """The answer to a question: "yes" or "no" to a threshold, "known" for a width, "spent" if the allowed calls did not
    suffice, "open" if the job ended before.

    The interval is that of the mean, the share or the difference, and holds however often one looked, with the
    question's confidence. It rests on `items` with a score (pairs of them, for a difference) out of `population`;
    `missing` had none.
    """

    model_config = ConfigDict(defer_build=True, frozen=True)

    question: str
    state: State
    value: float | None
    low: float | None
    high: float | None
    confidence: float
    items: int
    missing: int
    population: int
    calls_saved: int = Field(default=0, description="calls that were not needed, if none is made twice")
    asked: Question | None = Field(
        default=None, description="the question, with its dimension; null in earlier versions' reports"
    )

    def sentence(self) -> str:
        """Return the answer as a sentence."""
        outcomes = {"yes": "Yes", "no": "No", "known": "Known", "spent": "Not answered: its calls are spent"}
        outcome = outcomes.get(self.state, "Not answered: the job ended before")
        if self.items == 0:
            outcome = "That cannot be said, because nothing has a score"
        if self.value is not None:
            outcome += f"; {self.value:.4g} ({self.low:.4g} to {self.high:.4g}, {100 * self.confidence:g} %)"
        saved = f"; {self.calls_saved:,} calls were not needed" if self.calls_saved else ""
        return f"{self.question} {outcome}, after {self.items:,} of {self.population:,}{saved}."


def next_look(items: int) -> int:
    """Return how many items must have been judged before the next look is worthwhile: the more there are, the less a
    few more of them add."""
    return items + max(PAGE, items // 20)
