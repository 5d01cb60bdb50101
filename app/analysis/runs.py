"""Compares two runs over the same items: how far the scores moved, paired by item, dimension and judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dicast.app.analysis import estimates as student
from dicast.app.analysis.estimates import Estimate, Result
from dicast.app.analysis.groups import holm
from dicast.app.analysis.means import mean
from dicast.app.analysis.ratings import Checked, RatingScale
from dicast.app.analysis.scores import figure
from dicast.app.domain.judge_statistics import JudgeShift, MovedItem
from dicast.app.domain.report import Report

PAIR = ["dimension", "rater", "item"]


class NotComparable(ValueError):
    """The runs measured different things. `problems` has a sentence for each dimension that differs."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class RunScores:
    """How a dimension was measured: the hash of its rubric, and its scale."""

    rubric: str
    scale: RatingScale


@dataclass(frozen=True, slots=True)
class Shift:
    """The shift of one judge's scores of a dimension (second run less first), over the items of both runs.

    `p` is corrected by Holm for all shifts of the comparison; None if the shift is unknown. `only_first` and
    `only_second` count items with a score in one run alone.
    """

    dimension: str
    judge: str
    shift: Result
    p: float | None
    only_first: int
    only_second: int


@dataclass(frozen=True, slots=True)
class RunComparison:
    """All shifts, and the items that moved most: columns dimension, rater, item, first, second, moved."""

    shifts: tuple[Shift, ...]
    moved: pd.DataFrame


def check_comparable(first: Mapping[str, RunScores], second: Mapping[str, RunScores]) -> None:
    """Raise `NotComparable` if a dimension of both runs had another rubric or another scale, or none is common."""
    common = [name for name in first if name in second]
    problems = [f"{name}: another rubric" for name in common if first[name].rubric != second[name].rubric]
    problems += [f"{name}: another scale" for name in common if first[name].scale != second[name].scale]
    if not common:
        problems = ["the runs have no dimension in common"]
    if problems:
        raise NotComparable(tuple(problems))


def compare_runs(first: Checked, second: Checked, *, most: int = 20) -> RunComparison:
    """Return the shifts by dimension and judge, and the `most` items that moved furthest. Replicates are averaged
    first."""
    sides = [run.frame.groupby(PAIR, as_index=False)["score"].mean() for run in (first, second)]
    both = sides[0].merge(sides[1], on=PAIR, how="outer", suffixes=("_first", "_second"))
    both["moved"] = both["score_second"] - both["score_first"]
    shifts = []
    for (dimension, judge), rows in both.groupby(["dimension", "rater"]):
        if rows["score_first"].notna().any() and rows["score_second"].notna().any():
            shift = mean(rows["moved"].to_numpy(dtype=np.float64))
            alone = int(rows["score_second"].isna().sum()), int(rows["score_first"].isna().sum())
            shifts.append((str(dimension), str(judge), shift, *alone))
    corrected = iter(holm(np.array([_p(s[2]) for s in shifts if isinstance(s[2], Estimate)])).tolist())
    corrected_shifts = tuple(
        Shift(dimension, judge, shift, next(corrected) if isinstance(shift, Estimate) else None, a, b)
        for dimension, judge, shift, a, b in shifts
    )
    paired = both[both["moved"].notna() & (both["moved"] != 0)]
    furthest = paired.assign(far=paired["moved"].abs()).sort_values(["far", *PAIR], ascending=[False, True, True, True])
    columns = {"score_first": "first", "score_second": "second"}
    return RunComparison(
        corrected_shifts, furthest.head(most).drop(columns="far").rename(columns=columns).reset_index(drop=True)
    )


def _p(shift: Estimate) -> float:
    """Return the two-sided p-value against no shift, from the interval by Student's t."""
    degrees = shift.items - 1
    error = shift.width / 2 / student.quantile((1 + shift.confidence) / 2, degrees)
    return student.two_sided_p(shift.value / error, degrees)


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
