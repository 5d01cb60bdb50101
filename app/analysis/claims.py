"""All claims of a report as one family, whose p-values are corrected together.

A report is read for what stands out in it, over all judges, dimensions and groups. So the probability that it claims
anything that is not so is bounded for the report as a whole, by the step-down method of S. Holm (Scandinavian Journal
of Statistics 6, 1979, 65-70), which needs no independence. Claims are: that a judge or the panel scores above or below
people, that two groups differ (by people's means, and by the panel's), and what each probe found.

Not in the family are tests of what the figures rest on, such as whether the rated items are a random sample, and the
difference that ended a job, whose interval holds however often one looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dicast.app.analysis.groups import holm
from dicast.app.domain.judge_statistics import DimensionStatistics, GroupDifference, GroupStatistics


def correct_claims(dimensions: Sequence[DimensionStatistics]) -> tuple[list[DimensionStatistics], int]:
    """Return the dimensions with p-values that are corrected for all claims of the report, and the number of these."""
    raw = [p for dimension in dimensions for p in _p_values(dimension) if p is not None]
    corrected = iter(holm(np.array(raw)).tolist())
    return [_with_p_values(dimension, corrected) for dimension in dimensions], len(raw)


def correct_sample_checks(dimensions: Sequence[DimensionStatistics]) -> list[DimensionStatistics]:
    """Return the dimensions with the p-values of their tests of the sample, corrected for all of these."""
    corrected = iter(holm(np.array([check.p for of in dimensions for check in of.sample_checks])).tolist())

    def with_corrected(of: DimensionStatistics) -> DimensionStatistics:
        checks = [check.model_copy(update={"p": next(corrected)}) for check in of.sample_checks]
        return of.model_copy(update={"sample_checks": checks})

    return [with_corrected(of) for of in dimensions]


def _p_values(dimension: DimensionStatistics) -> Iterator[float | None]:
    yield from (rater.bias_p for rater in dimension.voices)
    for group in dimension.groups:
        yield from (pair.p for pair in (*group.people_differences, *group.differences))
    yield from (probe.p for probe in dimension.probes)


def _with_p_values(dimension: DimensionStatistics, corrected: Iterator[float]) -> DimensionStatistics:
    """Replace each known p-value by the next of `corrected`, in the order of `_p_values`."""

    def following(p: float | None) -> float | None:
        return None if p is None else next(corrected)

    def pairs(differences: Sequence[GroupDifference]) -> list[GroupDifference]:
        return [pair.model_copy(update={"p": following(pair.p)}) for pair in differences]

    def group_with(group: GroupStatistics) -> GroupStatistics:
        people = pairs(group.people_differences)
        return group.model_copy(update={"people_differences": people, "differences": pairs(group.differences)})

    voices = [rater.model_copy(update={"bias_p": following(rater.bias_p)}) for rater in dimension.voices]
    groups = [group_with(group) for group in dimension.groups]
    probes = [probe.model_copy(update={"p": following(probe.p)}) for probe in dimension.probes]
    return dimension.model_copy(update={"voices": voices, "groups": groups, "probes": probes})
