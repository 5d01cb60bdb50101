"""Calibrations: maps from a judge's scores to people's, each bound to what it was made for.

Maps are learned where the statistics libraries are installed (app/analysis/raters.py), and applied here without
them.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dicast.app.domain.figure import Figure
from dicast.app.domain.text import Id, Strict

MAX_MAPS = 2000
MAX_POINTS = 2001
PARTS = ("judge", "model", "prompt", "rubric")

Finite = Annotated[float, Field(allow_inf_nan=False)]
Method = Literal["isotonic", "ordinal", "linear"]


class MadeFor(Strict):
    """The digests of what a map applies to; see app/domain/fingerprints.py."""

    judge: str
    model: str
    prompt: str
    rubric: str

    def differing_parts(self, other: MadeFor) -> list[str]:
        """Return which of judge, model, prompt and rubric differ from `other`."""
        return [part for part in PARTS if getattr(self, part) != getattr(other, part)]


class CalibrationMap(Strict):
    """A piecewise linear map from scores of one judge, or of the whole panel, in one dimension to people's scores; it
    is constant beyond the outermost points.

    `gain` is by how much the squared error against people's mean falls, measured on items that the map was not learned
    on; `error` and `calibrated_error` are its root before and after, in points of the scale.
    """

    judge: Id = Field(description="the judge's name; 'panel' for the panel")
    kind: Literal["judge", "panel"] = "judge"
    dimension: Id
    judges: list[str] = Field(default_factory=list, description="of the panel")
    method: Method
    made_for: MadeFor
    model: str = Field(default="", description="the model's name, for people")
    x: list[Finite] = Field(min_length=1, max_length=MAX_POINTS, description="scores of the judge, ascending")
    y: list[Finite] = Field(min_length=1, max_length=MAX_POINTS, description="what people give there")
    items: int = Field(ge=1, description="rated items that it was learned on")
    error: Finite | None = None
    calibrated_error: Finite | None = None
    gain: Figure = Figure.unknown("it was not measured")
    point_errors: list[list[Finite]] = Field(
        default_factory=list,
        max_length=MAX_POINTS,
        description="a row a point: how the points err together; the covariance is this matrix times its transpose",
    )

    @model_validator(mode="after")
    def _points(self) -> Self:
        if len(self.x) != len(self.y):
            raise ValueError(f"x and y must have as many points, got {len(self.x)} and {len(self.y)}")
        if self.point_errors and (
            len(self.point_errors) != len(self.x) or len({len(row) for row in self.point_errors}) > 1
        ):
            raise ValueError("point_errors must have a row for each point, all of one length")
        if any(after <= before for before, after in zip(self.x, self.x[1:], strict=False)):
            raise ValueError("x must ascend")
        return self

    def apply(self, score: float) -> float:
        """Return the calibrated score."""
        x, y = self.x, self.y
        if score <= x[0]:
            return y[0]
        if score >= x[-1]:
            return y[-1]
        at = bisect_left(x, score)
        part = (score - x[at - 1]) / (x[at] - x[at - 1])
        return y[at - 1] + part * (y[at] - y[at - 1])


class Calibration(Strict):
    """The maps learned from one job, and what a job that uses them does if one was made for something else: `refuse` to
    run, or `warn` and apply it anyway."""

    version: Literal[1] = 1
    job: str = Field(default="", description="the job they were learned from")
    on_mismatch: Literal["refuse", "warn"] = "refuse"
    maps: list[CalibrationMap] = Field(min_length=1, max_length=MAX_MAPS)

    @model_validator(mode="after")
    def _check_unique_maps(self) -> Self:
        keys: set[tuple[str, str, str]] = set()
        for entry in self.maps:
            key = entry.kind, entry.judge, entry.dimension
            if key in keys:
                raise ValueError(f"maps: {entry.judge!r} has two in dimension {entry.dimension!r}")
            keys.add(key)
        return self

    def find(self, judge: str, dimension: str) -> CalibrationMap | None:
        """Return the map of a judge in a dimension, or None."""
        return self._find("judge", judge, dimension)

    def find_panel(self, dimension: str) -> CalibrationMap | None:
        """Return the map of the whole panel in a dimension, or None."""
        return self._find("panel", "panel", dimension)

    def _find(self, kind: str, judge: str, dimension: str) -> CalibrationMap | None:
        return next((m for m in self.maps if (m.kind, m.judge, m.dimension) == (kind, judge, dimension)), None)


def describe_differences(differing: list[str]) -> str:
    """Join the parts that differ: `another model and another rubric`."""
    return " and ".join(f"another {part}" for part in differing)
