"""A criterion of the rubric, as a job or a rubric file defines it.

A score is a whole number whatever the kind, so that ledger and statistics know one sort of score:

    numbers      from `min` to `max`
    labels       the label's place, 0 for the first
    checklist    how many of its questions are answered with yes
    preference   above 0 where A is better: -1, 0, 1, or -2 to 2 with strength
    criteria     what share of the attainable points the item's own criteria bring, in percent

Judges and people never see such a number: they give the label, the answers, or which text is better. For criteria,
people give the percentage.

A scale of criteria has those that each item brings. Such a criterion is a statement about what is judged, and is met or
not. Its points are below 0 where it states a fault. The score is that of HealthBench (R. K. Arora et al., "HealthBench:
Evaluating Large Language Models Towards Improved Human Health", 2025, arXiv 2505.08775; `calculate_score` in the code
published with it): the points of the criteria that are met, divided by the sum of all points above 0. That share may
lie below 0. HealthBench cuts its mean over many items to 0..1, and not the share of an item; here each item's score is
cut, since a scale has ends. Opinions keep the share as it is, so that the report tells HealthBench's mean, too.

A criterion without an answer is neither met nor missed: it makes the share an interval, whose middle is the score.
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    StringConstraints,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import to_json

from dicast.app.domain.panel import PanelRule
from dicast.app.domain.text import Id, Strict, Text, Version, printable_text
from dicast.errors import meant

MAX_SCALE_WIDTH = 1000
MAX_SCORE = 10**9
MAX_LABELS = 50
MAX_LABEL_CHARS = 100
MAX_QUESTIONS = 20

PASS_FAIL = ("fail", "pass")
PREFERENCES = {
    "choice": ("B", "tie", "A"),
    "strength": ("B much better", "B better", "tie", "A better", "A much better"),
}
"""What a judge of a pair may answer, from the lowest score on."""
SHORT = {
    "pass_fail": {"labels": list(PASS_FAIL)}, "preference": {"preference": "choice"}, "criteria": {"criteria": "item"}
}  # fmt: skip
"""Names that stand for a scale in place of a mapping."""

_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?")

Kind = Literal["numbers", "labels", "checklist", "preference", "criteria"]
Label = Annotated[str, StringConstraints(min_length=1, max_length=MAX_LABEL_CHARS), AfterValidator(printable_text)]


MAX_CRITERIA = 100
MAX_CRITERION_CHARS = 10_000
MIN_POINTS, MAX_POINTS = 0.001, 1_000_000
WHOLE = 100
"""The score of an item that attains all points: scores are percentages."""
DECIMALS = 6


def _worth_something(points: float) -> float:
    if abs(points) < MIN_POINTS:
        raise ValueError(f"must be at least {MIN_POINTS} above or below 0, got {points:g}")
    return points


class Criterion(Strict):
    """One statement that a judge finds met or not, and the points that it brings if it is met."""

    text: Annotated[Text, StringConstraints(max_length=MAX_CRITERION_CHARS)]
    points: Annotated[
        float, Field(ge=-MAX_POINTS, le=MAX_POINTS, allow_inf_nan=False), AfterValidator(_worth_something)
    ] = Field(description="below 0 for a fault; never 0")


class Attained(NamedTuple):
    """The lowest and the highest share of the attainable points that answers allow, not cut to 0..1; both are the same
    if every criterion has an answer."""

    low: float
    high: float

    @property
    def score(self) -> int:
        """The score: the middle of both ends, each cut to 0..1, in whole percent (halves up)."""
        low, high = (min(max(end, 0.0), 1.0) for end in self)
        return math.floor(round(WHOLE * (low + high) / 2, DECIMALS) + 0.5)


def attained(points: Sequence[float], answers: Sequence[bool | None]) -> Attained:
    """Return what the answers attain of `points`, of which one at least is above 0; None is a criterion without an
    answer. Shares have six decimals. Raises ValueError if there are more of one than of the other."""
    sure = [worth for worth, is_met in zip(points, answers, strict=True) if is_met]
    open_ones = [worth for worth, is_met in zip(points, answers, strict=True) if is_met is None]
    whole = math.fsum(worth for worth in points if worth > 0)
    low = math.fsum([*sure, *(worth for worth in open_ones if worth < 0)]) / whole
    high = math.fsum([*sure, *(worth for worth in open_ones if worth > 0)]) / whole
    return Attained(round(low, DECIMALS), round(high, DECIMALS))


class CriteriaTally:
    """Sums up what opinions attain of their items' points, exactly, whatever their order."""

    def __init__(self) -> None:
        self.opinions = self.criteria = self.met = self.unanswered = self.incomplete = 0
        self._low = self._high = 0

    def add(self, answers: Sequence[bool | None], shares: tuple[float, float]) -> None:
        """Count one opinion."""
        unanswered = answers.count(None)
        self.opinions += 1
        self.criteria += len(answers)
        self.met += answers.count(True)
        self.unanswered += unanswered
        self.incomplete += unanswered > 0
        self._low += round(shares[0] * 10**DECIMALS)
        self._high += round(shares[1] * 10**DECIMALS)

    @property
    def mean(self) -> Attained:
        """The bounds of HealthBench's mean: that of the shares, cut to 0..1. There must be an opinion."""
        means = (total / self.opinions / 10**DECIMALS for total in (self._low, self._high))
        low, high = (min(max(mean, 0.0), 1.0) for mean in means)
        return Attained(low, high)


def check_criteria(criteria: Iterable[Criterion]) -> None:
    """Raise ValueError if no criterion has points above 0: nothing could be attained."""
    points = [criterion.points for criterion in criteria]
    if max(points) < 0:
        raise ValueError(f"criteria: one at least needs points above 0, got {', '.join(f'{p:g}' for p in points[:10])}")


class Scale(Strict):
    """Whole numbers from `min` to `max`, both included; or one of the other kinds, from which `min` and `max`
    follow."""

    min: int = Field(default=1, ge=-MAX_SCORE, le=MAX_SCORE)
    max: int = Field(default=10, ge=-MAX_SCORE, le=MAX_SCORE)
    labels: list[Label] = Field(default_factory=list, description="from the lowest; a judge answers with one of them")
    ordered: bool = Field(default=True, description="false: the labels' order means nothing (nominal)")
    checklist: list[Text] = Field(default_factory=list, description="questions, each answered with yes or no")
    preference: Literal["choice", "strength"] | None = Field(
        default=None, description="which text of a pair is better; strength: and how much"
    )
    criteria: Literal["item"] | None = Field(default=None, description="item: each item is judged by its own criteria")
    item_criteria: SkipJsonSchema[tuple[Criterion, ...]] = Field(
        default=(), description="the criteria of the item that is judged; set by Dicast alone"
    )

    @cached_property
    def kind(self) -> Kind:
        """The kind of the scale."""
        if self.labels:
            return "labels"
        if self.checklist:
            return "checklist"
        if self.criteria is not None:
            return "criteria"
        return "numbers" if self.preference is None else "preference"

    @property
    def nominal(self) -> bool:
        """Whether its scores have no order, so that their mean is meaningless."""
        return not self.ordered

    @cached_property
    def questions(self) -> Sequence[str]:
        """The texts to which a judge gives a true or false each: a checklist's questions, or the item's criteria."""
        return self.checklist or [criterion.text for criterion in self.item_criteria]

    def with_criteria(self, criteria: Sequence[Criterion]) -> Scale:
        """Return the scale with the criteria of an item."""
        # The copy takes over what is cached, so the questions are given as well.
        texts = [criterion.text for criterion in criteria]
        return self.model_copy(update={"item_criteria": tuple(criteria), "questions": texts})

    @cached_property
    def options(self) -> tuple[str, ...]:
        """The labels that a judge chooses from, by score from `min` on; () for the other kinds."""
        return tuple(self.labels) if self.preference is None else PREFERENCES[self.preference]

    def label(self, score: int) -> str | None:
        """Return the label of a score on the scale; None for kinds without labels."""
        options = self.options
        return options[score - self.min] if options else None

    def score_of(self, label: str) -> int | None:
        """Return the score of a label, or None if there is no such label. Case is significant, Unicode normalisation is
        not."""
        composed = _composed(label)
        places = (place for place, option in enumerate(self.options, self.min) if _composed(option) == composed)
        return next(places, None)

    @property
    def allowed_values(self) -> str:
        """A description of what a person may give."""
        if self.options:
            return f"one of {', '.join(self.options)}"
        if self.checklist:
            return f"the share of its {len(self.checklist)} questions that are answered with yes, 0 to 1"
        if self.criteria is not None:
            return f"the share of its points that the item attains, in percent, {self.bounds}"
        return f"a whole number from {self.bounds}"

    @property
    def bounds(self) -> str:
        """The lowest and the highest value, for people."""
        return f"{self.min} to {self.max}"

    @model_validator(mode="before")
    @classmethod
    def _bounds_of_kind(cls, data: Any) -> Any:
        """Set the bounds that follow from the kind. A scale may be of one kind only."""
        if isinstance(data, str):
            if data not in SHORT:
                raise ValueError(
                    f"must be a mapping, or one of {', '.join(SHORT)}, got {data[:60]!r}{meant(data, SHORT)}"
                )
            data = SHORT[data]
        if not isinstance(data, dict):
            return data
        if "item_criteria" in data:
            raise ValueError("item_criteria: Dicast alone sets it, from the criteria of each item")
        names = ("labels", "checklist", "preference", "criteria")
        kinds = [name for name in names if data.get(name) not in (None, [])]
        beside = [name for name in ("min", "max") if name in data]
        if len(kinds) > 1 or (kinds and beside):
            raise ValueError(f"has {' and '.join(kinds + beside)}: a scale is of one kind")
        if not kinds:
            for name in ("labels", "checklist"):
                if data.get(name) == []:
                    raise ValueError(f"{name} needs at least two, got none")
            if "ordered" in data:
                raise ValueError("ordered belongs to labels")
            return data
        return {**data, **_bounds(kinds[0], data[kinds[0]])}

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.max <= self.min and self.kind == "numbers":
            raise ValueError(f"scale.max must be > scale.min ({self.min}), got {self.max}")
        if self.max - self.min > MAX_SCALE_WIDTH:
            raise ValueError(f"scale must span at most {MAX_SCALE_WIDTH}, got {self.max - self.min}")
        if self.labels:
            _check_labels(self.labels)
        elif not self.ordered:
            raise ValueError("ordered belongs to labels")
        if self.checklist:
            _check_count("checklist", len(self.checklist), MAX_QUESTIONS)
            _check_unlike("checklist", self.checklist)
        return self

    @model_serializer(mode="wrap")
    def _as_given(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """Write only the fields of its kind, so that numeric scales and their digests stay as they always were."""
        fields: dict[str, Any] = handler(self)
        names = {"numbers": {"min", "max"}, "labels": {"labels", "ordered"}}.get(self.kind, {self.kind})
        if self.item_criteria:
            names = {*names, "item_criteria"}
        return {name: value for name, value in fields.items() if name in names}


def _bounds(kind: str, value: Any) -> dict[str, int]:
    """Return the bounds of a kind. They are always valid: what is wrong is reported for the field that was given."""
    if kind == "preference":
        return {"min": -2, "max": 2} if value == "strength" else {"min": -1, "max": 1}
    if kind == "criteria":
        return {"min": 0, "max": WHOLE}
    many = len(value) if isinstance(value, list) else 1
    return {"min": 0, "max": min(max(many - (kind == "labels"), 1), MAX_SCALE_WIDTH)}


def _check_labels(labels: list[str]) -> None:
    _check_count("labels", len(labels), MAX_LABELS)
    _check_unlike("labels", labels)
    for label in labels:
        if _NUMBER.fullmatch(label):
            raise ValueError(f"labels: a number is no label; give min and max, or a word for it, got {label!r}")


def _check_count(name: str, count: int, most: int) -> None:
    if not 2 <= count <= most:
        raise ValueError(f"{name}: there must be 2 to {most}, got {count}")


def _check_unlike(name: str, texts: list[str]) -> None:
    by_key: dict[str, str] = {}
    for text in texts:
        key = " ".join(_composed(text).casefold().split())
        if key in by_key:
            alike = "occurs twice" if by_key[key] == text else f"and {by_key[key]!r} differ only in case or white space"
            raise ValueError(f"{name}: {text!r} {alike}")
        by_key[key] = text


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


MAX_EXAMPLES = 5


class Dimension(Strict):
    """One criterion of the rubric."""

    id: Id
    name: str = ""
    instructions: Text
    scale: Scale = Scale()
    version: Version = Field(default="", description="of the rubric, as its author counts")
    levels: dict[int, str] = Field(default_factory=dict, description="score or label -> what earns it")
    examples: dict[int, list[Text]] = Field(
        default_factory=dict, description="score or label -> what has earned it, each a text"
    )
    weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    template: str | None = Field(
        default=None, description="how judges are shown the material for it; None: as the judge or the job says"
    )
    panel: PanelRule | None = Field(default=None, description="how the judges' scores become one; None: the job's")

    @property
    def rubric(self) -> str:
        """A digest of everything that tells a judge how to score; equal for equal rubrics."""
        rubric_fields = self.model_dump(
            mode="json", include={"id", "name", "instructions", "scale", "levels", "examples"}
        )
        return hashlib.sha256(to_json(dict(sorted(rubric_fields.items())))).hexdigest()[:16]

    def asked_about(self, criteria: Sequence[Criterion] | None) -> Dimension:
        """Return the dimension as a judge is asked about an item that brings these criteria; itself, unless its scale
        is of criteria."""
        if criteria is None or self.scale.criteria is None:
            return self
        return self.model_copy(update={"scale": self.scale.with_criteria(criteria)})

    @model_validator(mode="before")
    @classmethod
    def _level_keys(cls, data: Any) -> Any:
        """Convert the keys of levels and examples to scores.

        JSON has only text keys: {"1": "..."} means level 1, and keys of a scale with labels are labels. A level may
        also be `{means: ..., examples: [...]}`.
        """
        if not isinstance(data, dict):
            return data
        tables = {name: data[name] for name in ("levels", "examples") if isinstance(data.get(name), dict)}
        scale = _valid_scale(data.get("scale")) if tables else None
        by_score = {name: _keyed_by_score(name, value, scale) for name, value in tables.items()}
        levels, examples = by_score.get("levels", {}), dict(by_score.get("examples", {}))
        for score, level in levels.items():
            if isinstance(level, dict) and level.keys() <= {"means", "examples"} and "means" in level:
                if level.get("examples"):
                    examples[score] = level["examples"]
                levels[score] = level["means"]
        return {**data, **by_score, **({"examples": examples} if examples else {})}

    @model_validator(mode="after")
    def _levels_on_scale(self) -> Self:
        for name, scores in (("levels", self.levels), ("examples", self.examples)):
            if scores and self.scale.kind == "checklist":
                raise ValueError(f"{name}: a checklist has none; its questions say what earns a point")
            if scores and self.scale.kind == "criteria":
                raise ValueError(f"{name}: a scale of criteria has none; each item says what earns its points")
            for score in scores:
                if not self.scale.min <= score <= self.scale.max:
                    raise ValueError(f"{name}: {score} is outside the scale {self.scale.min}..{self.scale.max}")
        if any(len(texts) > MAX_EXAMPLES for texts in self.examples.values()):
            raise ValueError(f"examples: a score has at most {MAX_EXAMPLES}")
        return self


def _valid_scale(scale: Any) -> Scale | None:
    """Return the scale, or None if it is invalid, which its own field reports."""
    if scale is None or isinstance(scale, Scale):
        return scale
    try:
        return Scale.model_validate(scale)
    except ValidationError:
        return None


def _keyed_by_score(name: str, table: dict[Any, Any], scale: Scale | None) -> dict[Any, Any]:
    """Return the table with keys that are whole numbers, or labels of the scale, replaced by scores."""
    scores = {}
    for key, value in table.items():
        score = _score(name, key, scale)
        if score in scores:
            raise ValueError(f"{name}: {key} is described twice")
        scores[score] = value
    return scores


def _score(name: str, key: Any, scale: Scale | None) -> Any:
    if not isinstance(key, str):
        return key
    if re.fullmatch(r"-?\d{1,9}", key):
        return int(key)
    if scale is None or not scale.options:
        return key
    score = scale.score_of(key)
    if score is None:
        raise ValueError(f"{name}: {key[:60]!r} is none of the scale's labels: {', '.join(scale.options)}")
    return score
