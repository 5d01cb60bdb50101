"""A job's quality gate: the thresholds that its results must pass, and the result of each check."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from dicast.app.domain.price import Amount
from dicast.app.domain.text import Id, Strict
from dicast.errors import meant

MAX_CHECKS = 200
LEVEL = 0.05
"""The significance level: a p-value below this proves a loss."""


def _share(value: Any) -> Any:
    """Convert a percentage or a number written as text, `1%`, to a share, 0.01."""
    percent = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", value) if isinstance(value, str) else None
    if percent:
        return float(percent[1]) / 100
    return float(value) if isinstance(value, str) and re.fullmatch(r"\s*\d*\.?\d+\s*", value) else value


Finite = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), BeforeValidator(_share)]


class QualityGate(Strict):
    """The thresholds that a job's results must reach. An empty gate lets everything pass."""

    fail_under: dict[Id, Finite] = Field(
        default_factory=dict, max_length=MAX_CHECKS, description="dimension -> the least mean"
    )
    opinion: Literal["people", "judges"] = Field(
        default="people",
        description="whose mean fail_under is held against: people's of all items, where they rated, or the panel's",
    )
    confident: bool = Field(
        default=False, description="judge by the end of the 95 % interval that speaks against passing, not by the value"
    )
    max_errors: Share | None = Field(default=None, description="most units without a score: a share, or '1%'")
    max_cost: Amount | None = Field(
        default=None, description="most that the job's calls may have cost, what is unknown of it included"
    )
    not_worse_than: str | None = Field(
        default=None, min_length=1, description="a finished job over the same items, or its folder"
    )
    shift: Finite = Field(default=0.0, ge=0, description="the smallest drop against that job that counts, in points")
    min_agreement: Finite | None = Field(
        default=None, ge=-1, le=1, description="least correlation of the panel with the people who rated this job"
    )
    calibrated: bool = Field(
        default=False, description="take calibrated scores, and refuse where the calibration is not for this job"
    )

    certificate: str | None = Field(
        default=None, min_length=1, description="file of a certificate that must hold for the judges (`dicast certify`)"
    )

    @model_validator(mode="after")
    def _proof_needs_room(self) -> Self:
        if self.confident and self.not_worse_than is not None and self.shift == 0:
            raise ValueError(
                "confident: that nothing was lost at all cannot be proved; say how much may be (shift > 0)"
            )
        if self.shift and self.not_worse_than is None:
            raise ValueError(f"shift: {self.shift:g} belongs to not_worse_than, which is not given")
        return self

    @property
    def has_conditions(self) -> bool:
        """Whether the gate has any threshold."""
        return bool(
            self.fail_under or self.max_errors is not None or self.max_cost is not None
            or self.not_worse_than is not None or self.min_agreement is not None or self.calibrated
            or self.certificate is not None
        )  # fmt: skip

    def check_dimensions(self, scales: dict[str, tuple[float, float]], nominal: Collection[str] = ()) -> None:
        """Raise ValueError for a threshold on a dimension that does not exist or has no mean, or that lies off its
        scale."""
        for name, least in self.fail_under.items():
            if name not in scales:
                choices = f"{', '.join(scales)}{meant(name, scales)}"
                raise ValueError(f"gate.fail_under: {name!r} is none of the dimensions, which are {choices}")
            if name in nominal:
                raise ValueError(f"gate.fail_under: the labels of {name} have no order, so there is no mean")
            low, high = scales[name]
            if not low <= least <= high:
                raise ValueError(f"gate.fail_under: {name} has a scale of {low:g} to {high:g}, got {least:g}")


class Check(BaseModel):
    """One threshold and its result. If `passed` is None it cannot be decided, and `told` says why. `value`, `low` and
    `high` are what was measured, `bound` what was demanded."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    name: str
    kind: Literal[
        "fail_under", "max_errors", "max_cost", "not_worse_than", "min_agreement", "calibrated", "certificate",
        "complete",
    ]  # fmt: skip
    dimension: str = ""
    passed: bool | None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    bound: float | None = None
    p: float | None = None
    told: str


class QualityVerdict(BaseModel):
    """The result of a quality gate on a finished job."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    job_id: str
    checks: list[Check]

    @property
    def passed(self) -> bool | None:
        """True if all checks passed; None if none failed and some cannot be decided."""
        results: Collection[bool | None] = [check.passed for check in self.checks]
        return False if False in results else None if None in results else True

    @property
    def failures_first(self) -> list[Check]:
        """The checks that failed, then those that cannot be decided, then those that passed."""
        return sorted(self.checks, key=lambda check: {False: 0, None: 1, True: 2}[check.passed])
