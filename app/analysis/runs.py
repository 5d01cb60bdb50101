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
from dicast.app.domain.figure import interval_text
from dicast.app.domain.judge_statistics import JudgeShift, MovedItem, RunShift
from dicast.app.domain.report import Report
from dicast.app.domain.text import first_few, joined

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


def compare_runs(
    first: Checked, second: Checked, *, most: int = 20, lengths: Mapping[str, float] | None = None
) -> RunComparison:
    """Return the shifts by dimension and judge, and the `most` items that moved furthest. Replicates are averaged
    first. `lengths` are those of the dimensions' scales; without them nothing is said of scores that all moved
    alike."""
    sides = [run.frame.groupby(PAIR, as_index=False)["score"].mean() for run in (first, second)]
    both = sides[0].merge(sides[1], on=PAIR, how="outer", suffixes=("_first", "_second"))
    both["moved"] = both["score_second"] - both["score_first"]
    moves, names = [], []
    for (dimension, judge), rows in both.groupby(["dimension", "rater"]):
        if rows["score_first"].notna().any() and rows["score_second"].notna().any():
            moves.append(_move(rows["moved"], (lengths or {}).get(str(dimension))))
            alone = int(rows["score_second"].isna().sum()), int(rows["score_first"].isna().sum())
            names.append((str(dimension), str(judge), alone))
    shifts = tuple(
        Shift(dimension, judge, shift, p, *alone)
        for (dimension, judge, alone), (shift, p) in zip(names, _corrected(moves), strict=True)
    )
    paired = both[both["moved"].notna() & (both["moved"] != 0)]
    furthest = paired.assign(far=paired["moved"].abs()).sort_values(["far", *PAIR], ascending=[False, True, True, True])
    columns = {"score_first": "first", "score_second": "second"}
    return RunComparison(shifts, furthest.head(most).drop(columns="far").rename(columns=columns).reset_index(drop=True))


def _move(moved: pd.Series, length: float | None) -> tuple[Result, float | None]:
    """Return the mean move and its two-sided p-value against none, by Student's t. Where all moved alike, the interval
    is that of a mean within `length` either way (`means.bounded_mean`), and p that of the sign test: 1 for no move, and
    2^(1-n) for the same move n times."""
    moves = moved.dropna().to_numpy(dtype=np.float64)
    shift = mean(moves)
    if isinstance(shift, Estimate):
        degrees = shift.items - 1
        error = shift.width / 2 / student.quantile((1 + shift.confidence) / 2, degrees)
        return shift, student.two_sided_p(shift.value / error, degrees)
    if length is None:
        return shift, None
    shift = mean(moves, bounds=(-length, length))
    if not isinstance(shift, Estimate):
        return shift, None
    return shift, 1.0 if shift.value == 0 else 2.0 ** (1 - len(moves))


def _corrected(moves: Sequence[tuple[Result, float | None]]) -> list[tuple[Result, float | None]]:
    """Return the moves with p corrected by Holm for all whose p is known."""
    corrected = iter(holm(np.array([p for _, p in moves if p is not None])).tolist())
    return [(shift, None if p is None else next(corrected)) for shift, p in moves]


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


def shifts(
    first: pd.DataFrame, second: pd.DataFrame, most: int, lengths: Mapping[str, float]
) -> tuple[list[JudgeShift], list[MovedItem]]:
    """Return all shifts, and the items that moved most. The frames have a row for each opinion: item, dimension,
    rater, score. `lengths` are those of the dimensions' scales."""
    scored = [frame[frame["score"].notna()] for frame in (first, second)]
    comparison = compare_runs(*(Checked(frame, 0) for frame in scored), most=most, lengths=lengths)
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


def by_item(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Return how far each item moved in each dimension, as a mean over the judges who scored it in both runs: columns
    dimension, item, moved."""
    sides = [
        frame[frame["score"].notna()].groupby(PAIR, as_index=False)["score"].mean() for frame in (first, second)
    ]  # fmt: skip
    both = sides[0].merge(sides[1], on=PAIR, suffixes=("_first", "_second"))
    both["moved"] = both["score_second"] - both["score_first"]
    return both.groupby(["dimension", "item"], as_index=False)["moved"].mean()


def run_shifts(
    moved: pd.DataFrame, systems: Mapping[str, str], lengths: Mapping[str, float]
) -> tuple[list[RunShift], list[RunShift]]:
    """Return the shifts of all items by dimension, and those of each system; p is corrected for both together.
    `lengths` are those of the dimensions' scales."""
    moves, places = [], []
    names = moved["item"].map(systems) if systems else None
    for dimension, rows in moved.groupby("dimension"):
        length = lengths[str(dimension)]
        places.append((str(dimension), ""))
        moves.append(_move(rows["moved"], length))
        if names is not None:
            for system, part in rows.groupby(names.loc[rows.index]):
                places.append((str(dimension), str(system)))
                moves.append(_move(part["moved"], length))
    shifts = [
        RunShift(dimension=dimension, system=system, shift=figure(shift), p=p)
        for (dimension, system), (shift, p) in zip(places, _corrected(moves), strict=True)
    ]
    return [shift for shift in shifts if not shift.system], [shift for shift in shifts if shift.system]


CLEAR = 0.05
NAMED = 3


def summary(panel: Sequence[RunShift], systems: Sequence[RunShift], judges: Sequence[JudgeShift]) -> list[str]:
    """Return what moved in sentences: systems first, then all items together, then judges. `judges` are the shifts on
    the items of systems that did not change, if some did and others did not."""
    names = list(dict.fromkeys(shift.system for shift in systems))
    changed = [name for name in names if any(_clear(shift) for shift in systems if shift.system == name)]
    if names and len(changed) < len(names):
        if not changed:
            return [f"None of the {len(names)} systems changed beyond chance.", *_widest([*systems, *panel])]
        only = "Only " if len(changed) == 1 else ""
        lines = [f"{only}{joined(changed)} changed: {_moves([s for s in systems if s.system in changed])}."]
        rest = [name for name in names if name not in changed]
        lines.append(f"{first_few(rest, NAMED)} did not change beyond chance.")
        suspects = list(dict.fromkeys(shift.judge for shift in judges if _clear(shift)))
        lines.append(
            f"On their items {joined(suspects)} moved all the same: a judge may have changed, too." if suspects
            else "On their items no judge moved either, so the change lies in the texts, not in the judges."
        )  # fmt: skip
        return lines
    clear = [shift for shift in panel if _clear(shift)]
    if not clear:
        return ["Nothing moved beyond chance.", *_widest(panel)]
    lines = [f"{'All systems' if names else 'The scores'} changed: {_moves(clear)}."]
    moved = list(dict.fromkeys(shift.judge for shift in judges if _clear(shift)))
    still = list(dict.fromkeys(shift.judge for shift in judges if shift.judge not in moved))
    if moved and still:
        lines.append(f"Of the judges {joined(moved)} moved, and {first_few(still, NAMED)} did not: look at {moved[0]}.")
    elif names:
        lines.append("All systems and all judges moved: texts, models or prompts may be the cause.")
    return lines


def _clear(shift: RunShift | JudgeShift) -> bool:
    return shift.p is not None and shift.p < CLEAR


def _moves(shifts: Sequence[RunShift]) -> str:
    """Tell the clear ones of the shifts, the largest first."""
    clear = sorted((s for s in shifts if _clear(s)), key=lambda shift: -abs(shift.shift.value or 0.0))
    moves = [
        f"{interval_text(shift.shift, signed=True)} points in {shift.dimension}"
        + (f" ({shift.system})" if shift.system and len({s.system for s in clear}) > 1 else "")
        for shift in clear[:NAMED]
    ]
    return joined(moves) + (f", and {len(clear) - NAMED} more" if len(clear) > NAMED else "")


def _widest(shifts: Sequence[RunShift]) -> list[str]:
    measured = [shift for shift in shifts if shift.shift.value is not None]
    if not measured:
        return []
    most = max(measured, key=lambda shift: abs(shift.shift.value or 0.0))
    whose = f"{most.system}'s, of " if most.system else ""
    return [f"The largest move is {whose}{interval_text(most.shift, signed=True)} points in {most.dimension}."]
