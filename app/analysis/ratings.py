"""Ratings in long form: one row per item, dimension, rater and replicate, checked before anything is computed.

A rater is a person or a judge; which of them are people is known to the caller. A missing rating is an absent row, or
one whose score is empty (None or NaN).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dicast.app.analysis.estimates import Floats

KEY = ["item", "dimension", "rater", "replicate"]
COLUMNS = [*KEY, "score"]
SHOWN = 3


class RatingsError(ValueError):
    """The ratings cannot be used as they are. `problems` has a sentence for each thing that is wrong."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class RatingScale:
    """The scores of a dimension: from `low` to `high`, whole numbers unless `whole` is false, or one of `labels`.

    Labels are named in their order if they have one; their scores are their places, 0 to len(labels) - 1.
    """

    low: float = 0.0
    high: float = 0.0
    whole: bool = True
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.labels:
            object.__setattr__(self, "low", 0.0)
            object.__setattr__(self, "high", len(self.labels) - 1.0)
        if not self.low < self.high:
            raise ValueError(f"a scale needs two levels or more, got {self.low} to {self.high}")

    @property
    def levels(self) -> Floats:
        """All scores there are, ascending. A scale of fractions has no levels: it raises ValueError."""
        if not self.whole:
            raise ValueError("a scale of fractions has no levels")
        return np.arange(self.low, self.high + 1)


@dataclass(frozen=True, slots=True)
class Checked:
    """Ratings that passed: `frame` has the columns item, dimension, rater, replicate, score, and no empty score."""

    frame: pd.DataFrame
    empty: int


@dataclass(frozen=True, slots=True)
class RatingTable:
    """The scores of one dimension: items (rows) x raters (columns), NaN where a rating is missing."""

    items: tuple[str, ...]
    raters: tuple[str, ...]
    scores: Floats

    @property
    def missing(self) -> float:
        """The share of cells without a rating; 0 for a table without cells."""
        return float(np.isnan(self.scores).mean()) if self.scores.size else 0.0

    def of(self, raters: Sequence[str]) -> Floats:
        """Return the columns of `raters`, in that order; all NaN for a rater without scores."""
        place = {name: at for at, name in enumerate(self.raters)}
        columns = [self.scores[:, place[r]] if r in place else np.full(len(self.items), np.nan) for r in raters]
        return np.stack(columns, axis=1) if columns else np.empty((len(self.items), 0))


def check(frame: pd.DataFrame, scales: Mapping[str, RatingScale], items: Collection[str]) -> Checked:
    """Return the ratings, ready for use. Raises `RatingsError` with everything that is wrong with them.

    Wrong are: a column that is missing, items that are not among `items`, dimensions without a scale, an empty name, a
    score that is no number, infinite, off its scale or none of its labels, and two scores in one place. A column
    `replicate` may be left out: all are replicate 0.
    """
    absent = [column for column in COLUMNS if column not in frame.columns and column != "replicate"]
    if absent:
        raise RatingsError([f"the column {', '.join(absent)} is missing"])
    if frame.columns.duplicated().any():
        raise RatingsError(["a column is there twice"])
    selected = frame.assign(replicate=frame.get("replicate", 0))[COLUMNS]
    filled = selected[selected["score"].notna()].reset_index(drop=True)
    problems = [
        *_strange(filled, "item", set(items), "unknown items"),
        *_strange(filled, "dimension", set(scales), "unknown dimensions"),
    ]
    nameless = filled["rater"].isna() | (filled["rater"].astype(str).str.strip() == "")
    if nameless.any():
        problems.append(f"{nameless.sum()} ratings without a rater")
    numbered = pd.to_numeric(filled["replicate"], errors="coerce")
    if not (numbered >= 0).all() or (numbered % 1 != 0).any():
        problems.append("a replicate is no whole number from 0")
    scores = pd.Series(np.nan, index=filled.index)
    for dimension, scale in scales.items():
        rows = filled["dimension"] == dimension
        scores[rows], wrong = _scores(filled.loc[rows, "score"], scale)
        if wrong:
            problems.append(f"{dimension}: {wrong}")
    twice = filled.duplicated(KEY)
    if twice.any():
        problems.append(f"{twice.sum()} ratings are there twice, as {_example(filled[twice])}")
    if problems:
        raise RatingsError(problems)
    texts = {column: filled[column].astype(str) for column in ("item", "dimension", "rater")}
    return Checked(filled.assign(score=scores, **texts), len(selected) - len(filled))


def table(
    checked: Checked, dimension: str, *, items: Sequence[str] | None = None, replicate: int | None = None
) -> RatingTable:
    """Return the scores of a dimension, one column per rater (in alphabetical order), one row per item.

    `items` fixes the rows and their order; without it they are the items rated in this dimension. Several replicates of
    one rater are averaged, unless one of them is named. Raises ValueError if `items` names one twice.
    """
    frame = checked.frame
    chosen = frame[frame["dimension"] == dimension]
    if replicate is not None:
        chosen = chosen[chosen["replicate"] == replicate]
    rows = pd.Index(pd.unique(chosen["item"]) if items is None else [str(item) for item in items])
    if not rows.is_unique:
        raise ValueError("an item is named twice")
    columns, names = pd.factorize(chosen["rater"], sort=True)
    return RatingTable(
        tuple(rows),
        tuple(names),
        _spread(rows.get_indexer(chosen["item"]), columns, chosen["score"], (len(rows), len(names))),
    )


def replicates(checked: Checked, dimension: str, rater: str) -> Floats:
    """Return one rater's repeated scores of the same items: items (rows) x replicates (columns), NaN where one is
    missing."""
    frame = checked.frame
    chosen = frame[(frame["dimension"] == dimension) & (frame["rater"] == rater)]
    rows, items = pd.factorize(chosen["item"])
    columns, names = pd.factorize(chosen["replicate"], sort=True)
    return _spread(rows, columns, chosen["score"], (len(items), len(names)))


def _spread(rows: Any, columns: Any, scores: pd.Series, shape: tuple[int, int]) -> Floats:
    """Put scores into their cells; several in one cell are averaged, a row of -1 is left out."""
    inside = rows >= 0
    cells = rows[inside] * shape[1] + columns[inside]
    size = shape[0] * shape[1]
    counts = np.bincount(cells, minlength=size)
    sums = np.bincount(cells, weights=scores.to_numpy(dtype=np.float64)[inside], minlength=size)
    means: Floats = np.divide(sums, counts, out=np.full(size, np.nan), where=counts > 0)
    return means.reshape(shape)


def _strange(frame: pd.DataFrame, column: str, allowed: set[str], what: str) -> list[str]:
    strange = sorted({str(name) for name in pd.unique(frame[column])} - {str(name) for name in allowed})
    return [f"{len(strange)} {what}, as {_list_names(strange)}"] if strange else []


def _scores(raw: pd.Series, scale: RatingScale) -> tuple[pd.Series, str]:
    """Return the scores as numbers, and what is wrong with them ("" if nothing)."""
    if scale.labels:
        numbers = raw.map({label: float(place) for place, label in enumerate(scale.labels)})
        wrong, rule = numbers.isna(), f"none of {', '.join(scale.labels)}"
    else:
        numbers = pd.to_numeric(raw, errors="coerce").astype(np.float64)
        whole = numbers == np.floor(numbers) if scale.whole else True
        wrong = ~(np.isfinite(numbers) & numbers.between(scale.low, scale.high) & whole)
        # A yes or no is 1 or 0 for pandas, but no score.
        wrong |= np.array([isinstance(score, bool | np.bool_) for score in raw], dtype=bool)
        rule = f"not {'whole ' if scale.whole else ''}numbers from {scale.low:g} to {scale.high:g}"
    examples = _list_names([repr(score) for score in pd.unique(raw[wrong].astype(object))])
    return numbers.astype(np.float64), f"{wrong.sum()} scores are {rule}, as {examples}" if wrong.any() else ""


def _example(rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    return f"{first['item']}, {first['dimension']}, {first['rater']}"


def _list_names(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
