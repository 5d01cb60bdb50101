"""A criterion of the rubric, as a job or a rubric file defines it.

A score is a whole number whatever the kind, so that ledger and statistics know one sort of score:

    numbers      from `min` to `max`
    labels       the label's place, 0 for the first
    checklist    how many of its questions are answered with yes
    preference   above 0 where A is better: -1, 0, 1, or -2 to 2 with strength

Judges and people never see such a number: they give the label, the answers, or which text is better.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from functools import cached_property
from typing import Annotated, Any, Literal, Self

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
SHORT = {"pass_fail": {"labels": list(PASS_FAIL)}, "preference": {"preference": "choice"}}
"""Names that stand for a scale in place of a mapping."""

_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?")

Kind = Literal["numbers", "labels", "checklist", "preference"]
Label = Annotated[str, StringConstraints(min_length=1, max_length=MAX_LABEL_CHARS), AfterValidator(printable_text)]


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

    @cached_property
    def kind(self) -> Kind:
        """The kind of the scale."""
        if self.labels:
            return "labels"
        if self.checklist:
            return "checklist"
        return "numbers" if self.preference is None else "preference"

    @property
    def nominal(self) -> bool:
        """Whether its scores have no order, so that their mean is meaningless."""
        return not self.ordered

    @cached_property
    def options(self) -> tuple[str, ...]:
        """The labels that a judge chooses from, by score from `min` on; () for numbers and checklists."""
        return tuple(self.labels) if self.preference is None else PREFERENCES[self.preference]

    def label(self, score: int) -> str | None:
        """Return the label of a score on the scale; None for numbers and checklists."""
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
        kinds = [name for name in ("labels", "checklist", "preference") if data.get(name) not in (None, [])]
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
        return {name: value for name, value in fields.items() if name in names}


def _bounds(kind: str, value: Any) -> dict[str, int]:
    """Return the bounds of a kind. They are always valid: what is wrong is reported for the field that was given."""
    if kind == "preference":
        return {"min": -2, "max": 2} if value == "strength" else {"min": -1, "max": 1}
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
