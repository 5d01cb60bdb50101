"""A criterion of the rubric, as a job or a rubric's file brings it."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Self

from pydantic import Field, model_validator
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
    levels: dict[int, str] = Field(default_factory=dict, description="score -> what earns it")
    examples: dict[int, list[Text]] = Field(
        default_factory=dict, description="score -> what has earned it, each a text"
    )
    weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    panel: PanelRule | None = Field(default=None, description="how the judges' scores become one; None: the job's")

    @property
    def rubric(self) -> str:
        """A digest of all that tells a judge how to score: equal for equal rubrics."""
        told = self.model_dump(mode="json", include={"id", "name", "instructions", "scale", "levels", "examples"})
        return hashlib.sha256(to_json(dict(sorted(told.items())))).hexdigest()[:16]

    @model_validator(mode="before")
    @classmethod
    def _level_keys(cls, data: Any) -> Any:
        """JSON has only text keys: {"1": "..."} means level 1. A level may be `{means: ..., examples: [...]}`."""
        if not isinstance(data, dict):
            return data
        given = {name: data[name] for name in ("levels", "examples") if isinstance(data.get(name), dict)}
        found = {name: _by_score(name, value) for name, value in given.items()}
        levels, examples = found.get("levels", {}), dict(found.get("examples", {}))
        for score, level in levels.items():
            if isinstance(level, dict) and level.keys() <= {"means", "examples"} and "means" in level:
                if level.get("examples"):
                    examples[score] = level["examples"]
                levels[score] = level["means"]
        return {**data, **found, **({"examples": examples} if examples else {})}

    @model_validator(mode="after")
    def _levels_on_scale(self) -> Self:
        for name, scores in (("levels", self.levels), ("examples", self.examples)):
            for score in scores:
                if not self.scale.min <= score <= self.scale.max:
                    raise ValueError(f"{name}: {score} is outside the scale {self.scale.min}..{self.scale.max}")
        if any(len(texts) > MAX_EXAMPLES for texts in self.examples.values()):
            raise ValueError(f"examples: a score has at most {MAX_EXAMPLES}")
        return self


def _by_score(name: str, given: dict[Any, Any]) -> dict[Any, Any]:
    """What texts that are whole numbers mean."""
    found = {}
    for key, value in given.items():
        whole = isinstance(key, str) and re.fullmatch(r"-?\d{1,9}", key)
        score = int(key) if whole else key
        if score in found:
            raise ValueError(f"{name}: {score} is described twice")
        found[score] = value
    return found
