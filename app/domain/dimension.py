"""A criterion of the rubric, as a job or a rubric file defines it."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import to_json

from dicast.app.domain.fields import Id, Strict, Text, Version
from dicast.app.domain.panel import PanelRule
from dicast.app.domain.scale import Scale

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
