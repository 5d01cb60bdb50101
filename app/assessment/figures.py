"""Converts results of app/statistics to plain data for the report."""

from __future__ import annotations

import math

from dicast.app.assessment.scores import DimensionScores
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import PeoplesMean, RaterAgreement
from dicast.app.statistics.agreement import NO_LEVELS, InterRaterAgreement
from dicast.app.statistics.estimates import Estimate, Result, Unknown
from dicast.app.statistics.powered import Powered


def figure(found: Result) -> Figure:
    """Convert a statistic with its interval, or the reason why it is unknown."""
    if isinstance(found, Unknown):
        return Figure.unknown(found.reason)
    return Figure(
        value=found.value, low=found.low, high=found.high, confidence=found.confidence, items=found.items,
        method=found.method,
    )  # fmt: skip


def of_levels(found: Result, of: DimensionScores) -> Figure:
    """Convert a statistic that counts levels. For a long scale, the reason says that there are too many."""
    if found is NO_LEVELS:
        many = of.dimension.scale_max - of.dimension.scale_min + 1
        return Figure.unknown(f"it counts levels, and a scale of {many} has too many")
    return figure(found)


def share(value: float) -> float | None:
    """Convert a share that may be undefined (NaN)."""
    return None if math.isnan(value) else value


def among_raters(found: InterRaterAgreement, raters: int, of: DimensionScores) -> RaterAgreement:
    """Convert the agreement of several raters among themselves."""
    return RaterAgreement(
        raters=raters,
        alpha=of_levels(found.alpha, of),
        fleiss=of_levels(found.fleiss, of),
        icc_single=figure(found.icc_single),
        icc_mean=figure(found.icc_mean),
        base_rate=share(found.base_rate),
        items=found.items,
        missing=found.missing,
    )


def peoples_mean(found: Powered) -> PeoplesMean:
    """Convert people's mean with and without the judges' help."""
    saved = found.saved
    return PeoplesMean(
        powered=figure(found.both),
        people_alone=figure(found.people_alone),
        judges_weight=found.judges_weight,
        saved=None if isinstance(saved, Unknown) else saved,
        saved_reason=saved.reason if isinstance(saved, Unknown) else None,
    )


def value_of(found: Result) -> float | None:
    """Return the value, None if it is unknown."""
    return found.value if isinstance(found, Estimate) else None
