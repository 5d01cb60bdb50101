"""Compares two runs over the same items: how far each judge's scores moved."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from dicast.app.assessment.figures import figure
from dicast.app.domain.findings import JudgeShift, MovedItem
from dicast.app.domain.report import Report
from dicast.app.statistics.ratings import Checked, RatingScale
from dicast.app.statistics.runs import NotComparable, RunScores, check_comparable, compare_runs


def incompatibilities(first: Report, second: Report) -> list[str]:
    """Return why two runs measure different things; empty if they may be compared."""
    measured = [
        {d.id: RunScores(d.rubric, RatingScale(d.scale_min, d.scale_max)) for d in report.dimensions}
        for report in (first, second)
    ]
    orders = [report.orders or "none" for report in (first, second)]
    apart = [f"the orders in which pairs were judged: {' and '.join(orders)}"] if orders[0] != orders[1] else []
    templates = [report.template or "none" for report in (first, second)]
    if templates[0] != templates[1]:
        apart.append(f"the templates that showed the items to the judges: {' and '.join(templates)}")
    try:
        check_comparable(*measured)
    except NotComparable as error:
        return [*error.problems, *apart]
    return apart


def shifts(first: pd.DataFrame, second: pd.DataFrame, most: int) -> tuple[list[JudgeShift], list[MovedItem]]:
    """Return all shifts, and the items that moved most. The frames have a row for each opinion: item, dimension,
    rater, score."""
    scored = [frame[frame["score"].notna()] for frame in (first, second)]
    comparison = compare_runs(*(Checked(frame, 0) for frame in scored), most=most)
    judge_shifts = [
        JudgeShift(
            dimension=shift.dimension, judge=shift.judge, shift=figure(shift.shift), p=shift.p,
            only_first=shift.only_first, only_second=shift.only_second,
        )
        for shift in comparison.shifts
    ]  # fmt: skip
    return judge_shifts, list(_moved(comparison.moved))


def _moved(frame: pd.DataFrame) -> Sequence[MovedItem]:
    return [
        MovedItem(item_id=row.item, dimension=row.dimension, judge=row.rater, first=row.first, second=row.second)
        for row in frame.itertuples()
    ]
