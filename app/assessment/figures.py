"""Converts results of app/statistics to plain data for the report."""

from __future__ import annotations

import math

from dicast.app.assessment.scores import DimensionScores
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import PeoplesMean, RaterAgreement
from dicast.app.statistics.agreement import NO_LEVELS, InterRaterAgreement
from dicast.app.statistics.estimates import Estimate, Result, Unknown
from dicast.app.statistics.powered import Powered


def figure(result: Result) -> Figure:
    """Convert a statistic with its interval, or the reason why it is unknown."""
    if isinstance(result, Unknown):
        return Figure.unknown(result.reason)
    return Figure(
        value=result.value, low=result.low, high=result.high, confidence=result.confidence, items=result.items,
        method=result.method,
    )  # fmt: skip


def level_figure(result: Result, dimension: DimensionScores) -> Figure:
    """Convert a statistic that counts levels. For a long scale, the reason says that there are too many."""
    if result is NO_LEVELS:
        many = dimension.spec.scale_max - dimension.spec.scale_min + 1
        return Figure.unknown(f"it counts levels, and a scale of {many} has too many")
    return figure(result)


def share(value: float) -> float | None:
    """Convert a share that may be undefined (NaN)."""
    return None if math.isnan(value) else value


def among_raters(agreement: InterRaterAgreement, raters: int, dimension: DimensionScores) -> RaterAgreement:
    """Convert the agreement of several raters among themselves."""
    return RaterAgreement(
        raters=raters,
        alpha=level_figure(agreement.alpha, dimension),
        fleiss=level_figure(agreement.fleiss, dimension),
        icc_single=figure(agreement.icc_single),
        icc_mean=figure(agreement.icc_mean),
        base_rate=share(agreement.base_rate),
        items=agreement.items,
        missing=agreement.missing,
    )


def peoples_mean(powered: Powered) -> PeoplesMean:
    """Convert people's mean with and without the judges' help."""
    saved = powered.saved
    return PeoplesMean(
        powered=figure(powered.both),
        people_alone=figure(powered.people_alone),
        judges_weight=powered.judges_weight,
        saved=None if isinstance(saved, Unknown) else saved,
        saved_reason=saved.reason if isinstance(saved, Unknown) else None,
    )


def value_of(result: Result) -> float | None:
    """Return the value, None if it is unknown."""
    return result.value if isinstance(result, Estimate) else None
