"""Compares one rater (a judge, the panel, or a person) with people: how far they agree, and how far off the
rater is."""

from __future__ import annotations

from typing import Literal

import numpy as np

from dicast.app.assessment.figures import figure, of_levels, peoples_mean, share
from dicast.app.assessment.scores import DimensionScores
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import PeoplesMean, RaterStatistics
from dicast.app.statistics.agreement import Comparison, inter_rater_agreement, judge_with_people, person_with_others
from dicast.app.statistics.arrays import Bools, Floats
from dicast.app.statistics.combining import combine_majority, combine_mean
from dicast.app.statistics.means import mean
from dicast.app.statistics.powered import powered_mean

NOBODY_RATED = "nobody has rated this dimension"
NO_MEAN = "labels without an order have no mean"
SPARED = (
    "it was asked only where the judges before it had not settled the outcome, and those are no sample of all items"
)
NOBODY_IN_AUDIT = "nobody has rated an item on which all judges were asked"
ONE_RATER = "one person alone has rated this dimension, so there is nobody to compare with"


def person(of: DimensionScores, rng: np.random.Generator) -> RaterStatistics | None:
    """Compare a person with the other people, which is the ceiling for a judge. Returns None if nobody has rated."""
    people = of.people
    if not people.raters:
        return None
    if len(people.raters) == 1:
        return _nothing("a person", "people", ONE_RATER).model_copy(update={"mean": _of_all_ratings(of)})
    found = _voice("a person", "people", person_with_others(people.scores, of.level, of.levels, rng), None, of)
    return found.model_copy(update={"mean": _of_all_ratings(of)})


def _of_all_ratings(of: DimensionScores) -> Figure:
    if of.dimension.nominal:
        return Figure.unknown(NO_MEAN)
    scores = of.people.scores
    items = np.repeat(np.arange(len(scores)), scores.shape[1])
    return figure(mean(scores.ravel(), clusters=items, bounds=of.bounds))


def voice(
    name: str, kind: Literal["judge", "panel"], scores: Floats, of: DimensionScores, rng: np.random.Generator
) -> RaterStatistics:
    """Compare a judge or the panel with people, by its scores (items x replicates)."""
    nominal = of.dimension.nominal
    replicates, whole = scores.shape[1], combine_majority(scores) if nominal else combine_mean(scores)
    repeats, own = None, Figure.unknown(NO_MEAN) if nominal else figure(mean(whole, bounds=of.bounds))
    if replicates > 1:
        found = inter_rater_agreement(scores, of.level, of.levels, rng).alpha
        repeats = of_levels(found, of)
    if not len(of.people.rated):
        reason = NOBODY_IN_AUDIT if of.people.raters else NOBODY_RATED
        return _nothing(name, kind, reason).model_copy(update={"repeats": repeats, "mean": own})
    people, rated = of.people.scores, of.people.rated
    found_mean = judge_with_people(whole[rated], people, of.level, of.levels, rng)
    # A mean of replicates is on no level: what counts levels uses the first replicate.
    first = judge_with_people(scores[rated, 0], people, of.level, of.levels, rng) if replicates > 1 else None
    told = _voice(name, kind, found_mean, first, of)
    together = inter_rater_agreement(np.column_stack([scores[rated, 0], people]), of.level, of.levels, rng)
    return told.model_copy(
        update={
            "alpha_with_people": of_levels(together.alpha, of),
            "icc_with_people": figure(together.icc_single),
            "peoples_mean": None if nominal else _powered(whole, of),
            "repeats": repeats,
            "mean": own,
        }
    )


def spared_judge(name: str, at: int, of: DimensionScores, rng: np.random.Generator) -> RaterStatistics:
    """Compare a judge who was asked about some items only with people, on the items of the audit. Without an audit
    nothing is known of its scores of all items."""
    part, scores, spared = of.of_audit, of.scores[:, at], of.spared[at]
    if part is not None:
        found = voice(name, "judge", part.scores[:, at], part, rng)
        return found.model_copy(update={"spared": spared, "audited": len(part.scores)})
    asked: Bools = np.asarray(~np.isnan(scores).all(axis=1))
    of_rated = asked[of.people.rated] if of.people.raters else asked
    found = _nothing(name, "judge", SPARED)
    missing = float(1 - of_rated.mean()) if len(of_rated) else 1.0
    return found.model_copy(update={"items": int(of_rated.sum()), "missing": missing, "spared": spared})


def _powered(whole: Floats, of: DimensionScores) -> PeoplesMean:
    if of.people.flaw is not None:
        unknown = Figure.unknown(of.people.flaw)
        return PeoplesMean(
            powered=unknown, people_alone=unknown, judges_weight=0.0, saved=None, saved_reason=of.people.flaw
        )
    means, chances = of.people.means(len(whole)), of.people.chances(len(whole))
    return peoples_mean(powered_mean(whole, means, probabilities=chances, bounds=of.bounds))


def _voice(
    name: str,
    kind: Literal["judge", "panel", "people"],
    found: Comparison,
    by_level: Comparison | None,
    of: DimensionScores,
) -> RaterStatistics:
    counted = by_level or found
    return RaterStatistics(
        name=name,
        kind=kind,
        pearson=figure(found.pearson),
        spearman=figure(found.spearman),
        kendall=figure(found.kendall),
        kappa=of_levels(counted.kappa, of),
        base_rate=share(found.base_rate),
        bias=figure(found.differences.bias),
        lower_limit=figure(found.differences.lower_limit),
        upper_limit=figure(found.differences.upper_limit),
        confusion=counted.confusion.tolist() if counted.confusion is not None else None,
        items=found.items,
        missing=found.missing,
    )


def _nothing(name: str, kind: Literal["judge", "panel", "people"], reason: str) -> RaterStatistics:
    unknown = Figure.unknown(reason)
    return RaterStatistics(
        name=name, kind=kind, mean=unknown, pearson=unknown, spearman=unknown, kendall=unknown, kappa=unknown,
        base_rate=None, bias=unknown, lower_limit=unknown, upper_limit=unknown, confusion=None, items=0, missing=1.0,
    )  # fmt: skip
