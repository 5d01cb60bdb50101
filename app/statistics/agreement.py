"""How far judges agree with people, people with each other, judges among themselves, and a judge with itself.

What a judge can be expected to reach is what a person reaches against the other people. Both are measured the same way,
over the same pairs, so that they can stand in neighbouring columns:

* correlations between a score and *the mean of the other people* (all who rated the item but one, each left out in
  turn; with one person, that one);
* kappa between a score and *one other person's score*, over all such pairs.

Pairs of one item are always drawn together. The raters are taken as they are: intervals speak of other items, not of
other people.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dicast.app.statistics.alpha import alpha
from dicast.app.statistics.arrays import Floats, Ints
from dicast.app.statistics.correlation import correlation
from dicast.app.statistics.differences import Differences, differences
from dicast.app.statistics.estimates import Result, Unknown
from dicast.app.statistics.icc import icc
from dicast.app.statistics.kappa import Weighting, base_rate, codes, cohen, fleiss

Level = Literal["nominal", "ordinal", "interval"]
WEIGHTINGS: dict[Level, Weighting] = {"nominal": "none", "ordinal": "linear", "interval": "quadratic"}
NO_DISTANCES = Unknown("labels have no distances")
NO_LEVELS = Unknown("a scale of fractions has no levels")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The agreement of scores with people's. `base_rate` is the share of the commonest score that people gave: read
    kappa beside it.

    `confusion` counts the scores (rows, by level) against single people's (columns); None without levels. `missing` is
    the share of items that lack a judge's or all people's scores or, among people, of cells without a rating.
    """

    pearson: Result
    spearman: Result
    kendall: Result
    kappa: Result
    differences: Differences
    confusion: Ints | None
    base_rate: float
    items: int
    missing: float


@dataclass(frozen=True, slots=True)
class InterRaterAgreement:
    """The agreement among several raters. `missing` is the share of cells without a rating."""

    alpha: Result
    fleiss: Result
    icc_single: Result
    icc_mean: Result
    base_rate: float
    items: int
    missing: float


@dataclass(frozen=True, slots=True)
class _Pairs:
    x: Floats
    y: Floats
    item: Ints


def judge_with_people(
    judge: Floats, people: Floats, level: Level, levels: Floats | None, rng: np.random.Generator
) -> Comparison:
    """Compare a judge's scores (one per item) with people's (items x people, NaN where missing).

    `levels` are the scale's values, ascending; None for a scale of fractions, which has no kappa.
    """
    item, who = np.nonzero(~np.isnan(people))
    others, scores = _mean_of_others(people, item, who), people[item, who]
    others = np.where(np.isnan(others), scores, others)
    missing = float((np.isnan(judge) | np.isnan(people).all(axis=1)).mean()) if len(judge) else 0.0
    with_mean, with_one = _Pairs(judge[item], others, item), _Pairs(judge[item], scores, item)
    return _comparison(with_mean, with_one, base_rate(people), missing, level, levels, rng)


def person_with_others(
    people: Floats, level: Level, levels: Floats | None, rng: np.random.Generator, *, person: int | None = None
) -> Comparison:
    """Compare people's scores with the other people's, which is the ceiling for a judge; or only those of one `person`
    (a column)."""
    item, who = np.nonzero(~np.isnan(people))
    if person is not None:
        item, who = item[who == person], who[who == person]
    scores = people[item, who]
    other = [np.flatnonzero(who != column) for column in range(people.shape[1])]
    pair = np.concatenate([np.empty(0, dtype=np.int64), *other])
    column = np.repeat(np.arange(len(other)), [len(places) for places in other])
    with_mean = _Pairs(scores, _mean_of_others(people, item, who), item)
    with_one = _Pairs(scores[pair], people[item[pair], column], item[pair])
    missing = float(np.isnan(people).mean()) if people.size else 0.0
    return _comparison(with_mean, with_one, base_rate(people), missing, level, levels, rng)


def inter_rater_agreement(
    scores: Floats, level: Level, levels: Floats | None, rng: np.random.Generator
) -> InterRaterAgreement:
    """Return the agreement among raters (columns): judges, people, or the replicates of one judge (its
    self-consistency)."""
    numeric = level != "nominal"
    return InterRaterAgreement(
        alpha=NO_LEVELS if levels is None and level != "interval" else alpha(scores, _or_none(levels), level, rng),
        fleiss=NO_LEVELS if levels is None else fleiss(scores, levels, rng),
        icc_single=icc(scores, rng) if numeric else NO_DISTANCES,
        icc_mean=icc(scores, rng, of_mean=True) if numeric else NO_DISTANCES,
        base_rate=base_rate(scores),
        items=int((~np.isnan(scores)).any(axis=1).sum()),
        missing=float(np.isnan(scores).mean()) if scores.size else 0.0,
    )


def confusion(x: Floats, y: Floats, levels: Floats) -> Ints | None:
    """Return how often `x` had each level (rows) where `y` had each level (columns); None if a score is no level."""
    both = ~(np.isnan(x) | np.isnan(y))
    cx, cy = codes(x[both], levels), codes(y[both], levels)
    if cx is None or cy is None:
        return None
    size = len(levels)
    return np.bincount(cx * size + cy, minlength=size * size).reshape(size, size)


def _comparison(
    mean: _Pairs,
    single: _Pairs,
    commonest: float,
    missing: float,
    level: Level,
    levels: Floats | None,
    rng: np.random.Generator,
) -> Comparison:
    no_differences = Differences(NO_DISTANCES, NO_DISTANCES, NO_DISTANCES)
    nominal = level == "nominal"
    return Comparison(
        pearson=NO_DISTANCES if nominal else correlation(mean.x, mean.y, "pearson", rng, item=mean.item),
        spearman=NO_DISTANCES if nominal else correlation(mean.x, mean.y, "spearman", rng, item=mean.item),
        kendall=NO_DISTANCES if nominal else correlation(mean.x, mean.y, "kendall", rng, item=mean.item),
        kappa=NO_LEVELS
        if levels is None
        else cohen(single.x, single.y, levels, WEIGHTINGS[level], rng, item=single.item),
        differences=no_differences if nominal else differences(mean.x, mean.y, rng, item=mean.item),
        confusion=None if levels is None else confusion(single.x, single.y, levels),
        base_rate=commonest,
        items=len(np.unique(mean.item[~(np.isnan(mean.x) | np.isnan(mean.y))])),
        missing=missing,
    )


def _mean_of_others(people: Floats, item: Ints, who: Ints) -> Floats:
    """Return, for each rating, the mean of the item's other ratings; NaN if there is none."""
    others = (~np.isnan(people)).sum(axis=1)[item] - 1
    sums = np.nansum(people, axis=1)[item] - people[item, who]
    means: Floats = np.divide(sums, others, out=np.full(len(item), np.nan), where=others > 0)
    return means


def _or_none(levels: Floats | None) -> Floats:
    return np.empty(0) if levels is None else levels
