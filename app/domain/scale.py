"""What scores there may be: numbers, labels, the share of a checklist, or a preference between two texts.

A score is a whole number whatever the kind, so that ledger and statistics know one sort of score:

    numbers      from `min` to `max`
    labels       the label's place, 0 for the first
    checklist    how many of its questions are answered with yes
    preference   above 0 where A is better: -1, 0, 1, or -2 to 2 with strength

Judges and people never see such a number: they give the label, the answers, or which text is better.
"""

from __future__ import annotations

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
    model_serializer,
    model_validator,
)

from dicast.app.domain.fields import Strict, Text, printable_text
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
        return f"a whole number from {self.min} to {self.max}"

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
