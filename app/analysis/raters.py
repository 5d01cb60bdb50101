"""Compares a rater (a judge, the panel, or a person) with people, and learns maps from judges' scores to people's.

The comparison tells how far they agree, and how far off the rater is. Maps are learned from a rated job
(`calibrations`), and evaluated in one that has a calibration (`calibrated_raters`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from dicast.app.analysis import estimates as student
from dicast.app.analysis.agreement import (
    FEWEST_REPLACED,
    Comparison,
    Contest,
    contests,
    inter_rater_agreement,
    judge_with_people,
    person_with_others,
    replacement_p,
    same_as_others,
    same_as_people,
)
from dicast.app.analysis.calibration import ScoreMap, calibrated_mean, gain, learn, map_errors
from dicast.app.analysis.combining import combine_majority, combine_mean
from dicast.app.analysis.estimates import Bools, Estimate, Floats, Ints, Result, Unknown
from dicast.app.analysis.means import FEWEST, SMALLEST, deviation, estimate, mean
from dicast.app.analysis.powered import CENSUS, for_raters_alike, powered_mean
from dicast.app.analysis.scores import (
    DimensionScores,
    JobScores,
    figure,
    level_figure,
    panel_scores,
    peoples_mean,
    share,
)
from dicast.app.domain.calibrated import Fit, ScoringContext
from dicast.app.domain.calibration import Calibration, CalibrationMap, Method
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import (
    EPSILONS,
    CalibratedRater,
    DimensionStatistics,
    NotCalibrated,
    PeoplesMean,
    RaterStatistics,
    ReplacedRater,
    ReplacementTest,
)

NOBODY_RATED = "nobody has rated this dimension"
NO_MEAN = "labels without an order have no mean"
SPARED = (
    "it was asked only where the judges before it had not settled the outcome, and those are no sample of all items"
)
NOBODY_IN_AUDIT = "nobody has rated an item on which all judges were asked"
ONE_RATER = "one person alone has rated this dimension, so there is nobody to compare with"
FEWEST_RATERS = 3
FALSE_DISCOVERIES = 0.05
"""The false discovery rate of the alternative annotator tests of a report."""


def person(dimension: DimensionScores, rng: np.random.Generator) -> RaterStatistics | None:
    """Compare a person with the other people, which is the ceiling for a judge. Returns None if nobody has rated."""
    people = dimension.people
    if not people.raters:
        return None
    if len(people.raters) == 1:
        return _unknown_rater("a person", "people", ONE_RATER).model_copy(update={"mean": _mean_of_ratings(dimension)})
    statistics = _against_people(
        "a person",
        "people",
        person_with_others(people.scores, dimension.level, dimension.levels, rng, clusters=dimension.rated_clusters),
        None,
        dimension,
    )
    same = _same(same_as_others(people.scores), dimension)
    return statistics.model_copy(update={"mean": _mean_of_ratings(dimension), "same": same})


def _mean_of_ratings(dimension: DimensionScores) -> Figure:
    if dimension.spec.nominal:
        return Figure.unknown(NO_MEAN)
    scores = dimension.people.scores
    pieces = np.arange(len(scores)) if dimension.rated_clusters is None else dimension.rated_clusters
    of_ratings = mean(scores.ravel(), clusters=np.repeat(pieces, scores.shape[1]), bounds=dimension.bounds)
    return figure(for_raters_alike(of_ratings, dimension.rater_spread, dimension.bounds))


def rater_statistics(
    name: str, kind: Literal["judge", "panel"], scores: Floats, dimension: DimensionScores, rng: np.random.Generator
) -> RaterStatistics:
    """Compare a judge or the panel with people, by its scores (items x replicates)."""
    nominal = dimension.spec.nominal
    replicates, whole = scores.shape[1], combine_majority(scores) if nominal else combine_mean(scores)
    repeats, mean_figure = None, Figure.unknown(NO_MEAN)
    if not nominal:
        mean_figure = figure(judged_mean(whole, dimension))
    if replicates > 1:
        alpha = inter_rater_agreement(scores, dimension.level, dimension.levels, rng, dimension.clusters).alpha
        repeats = level_figure(alpha, dimension)
    if not len(dimension.people.rated):
        reason = NOBODY_IN_AUDIT if dimension.people.raters else NOBODY_RATED
        return _unknown_rater(name, kind, reason).model_copy(update={"repeats": repeats, "mean": mean_figure})
    people, rated, clusters = dimension.people.scores, dimension.people.rated, dimension.rated_clusters
    comparison = judge_with_people(whole[rated], people, dimension.level, dimension.levels, rng, clusters)
    # A mean of replicates is on no level: what counts levels uses the first replicate.
    first = (
        judge_with_people(scores[rated, 0], people, dimension.level, dimension.levels, rng, clusters)
        if replicates > 1
        else None
    )
    statistics = _against_people(name, kind, comparison, first, dimension)
    together = inter_rater_agreement(
        np.column_stack([scores[rated, 0], people]), dimension.level, dimension.levels, rng, clusters
    )
    return statistics.model_copy(
        update={
            "alpha_with_people": level_figure(together.alpha, dimension),
            "icc_with_people": figure(together.icc_single),
            "peoples_mean": None if nominal else _powered(whole, dimension),
            "repeats": repeats,
            "mean": mean_figure,
            "bias_p": None if nominal else bias_p(whole[rated], people, clusters),
            "replaces": replacement_test(whole[rated], dimension),
            "same": _same(same_as_people(scores[rated, 0], people), dimension),
        }
    )


def _same(shares: Floats, dimension: DimensionScores) -> Figure | None:
    """Return the mean share of people who gave the same score, where the scale has levels."""
    if dimension.levels is None:
        return None
    return figure(mean(shares, clusters=dimension.rated_clusters, bounds=(0.0, 1.0)))


def replacement_test(judge: Floats, dimension: DimensionScores) -> ReplacementTest:
    """Return the test whether a judge, with one score a rated item, may replace one of the people. Its p-values are not
    corrected, so there are no winning rates yet."""
    people, clusters = dimension.people, dimension.rated_clusters
    if len(people.raters) < FEWEST_RATERS:
        reason = f"it leaves out one person in turn, needs {FEWEST_RATERS} people, and there are {len(people.raters)}"
        return ReplacementTest(advantage=Figure.unknown(reason), reason=reason)
    against = contests(judge, people.scores, nominal=dimension.spec.nominal)
    tested = {
        name: contest
        for name, contest in zip(people.raters, against, strict=True)
        if len(contest.item) >= FEWEST_REPLACED
    }
    if len(tested) < FEWEST_RATERS:
        reason = (
            f"it needs {FEWEST_RATERS} people who rated {FEWEST_REPLACED} items or more that the judge and others "
            f"scored, and there are {len(tested)}"
        )
        return ReplacementTest(advantage=Figure.unknown(reason), reason=reason)
    shares = {
        name: None if people.probabilities is None else 1 / people.probabilities[contest.item]
        for name, contest in tested.items()
    }
    raters = [
        ReplacedRater(
            name=name,
            items=len(contest.item),
            wins=_wins([contest], [shares[name]], clusters),
            p_values=[replacement_p(contest, epsilon, shares[name], clusters) for epsilon in EPSILONS],
        )
        for name, contest in tested.items()
    ]
    return ReplacementTest(advantage=_wins(list(tested.values()), list(shares.values()), clusters), raters=raters)


def _wins(against: Sequence[Contest], weights: Sequence[Floats | None], clusters: Ints | None) -> Figure:
    """Return the mean over people of the share of contests that the judge wins, with an interval by item or cluster."""
    if len(against) == 1 and weights[0] is None and clusters is None:
        return figure(mean(against[0].wins, bounds=(0.0, 1.0)))
    weighing = [
        np.ones(len(contest.item)) if shares is None else shares
        for contest, shares in zip(against, weights, strict=True)
    ]
    items = np.concatenate([contest.item for contest in against])
    whole = deviation(
        np.concatenate([contest.wins for contest in against]),
        items if clusters is None else clusters[items],
        np.concatenate([shares / shares.sum() for shares in weighing]),
    )
    return figure(estimate(whole, degrees=whole.pieces - 1, items=whole.pieces, method="t", bounds=(0.0, 1.0)))


def correct_replacements(dimensions: Sequence[DimensionStatistics]) -> list[DimensionStatistics]:
    """Return the dimensions with the p-values of their alternative annotator tests corrected for all people, judges and
    dimensions of the report, and with the winning rates that follow. Each epsilon is a family of its own: the
    hypotheses of a smaller one imply those of a larger one.

    The false discovery rate is controlled as Y. Benjamini and D. Yekutieli did (Annals of Statistics 29, 2001,
    1165-1188), under any dependence.
    """
    raters = [
        rater
        for statistics in dimensions
        for voice in statistics.voices
        if voice.replaces
        for rater in voice.replaces.raters
    ]
    if not raters:
        return list(dimensions)
    from scipy.stats import false_discovery_control  # noqa: PLC0415  (takes half a second of CPU time to load)

    raw = np.array([rater.p_values for rater in raters])
    corrected = iter(false_discovery_control(raw, axis=0, method="by").tolist())

    def with_corrected(test: ReplacementTest) -> ReplacementTest:
        if not test.raters:
            return test
        tested = [rater.model_copy(update={"p_values": next(corrected)}) for rater in test.raters]
        rates = (np.array([rater.p_values for rater in tested]) < FALSE_DISCOVERIES).mean(axis=0).tolist()
        return test.model_copy(update={"raters": tested, "winning_rates": rates})

    def with_tests(statistics: DimensionStatistics) -> DimensionStatistics:
        voices = [
            voice if voice.replaces is None else voice.model_copy(update={"replaces": with_corrected(voice.replaces)})
            for voice in statistics.voices
        ]
        return statistics.model_copy(update={"voices": voices})

    return [with_tests(statistics) for statistics in dimensions]


def judged_mean(scores: Floats, dimension: DimensionScores) -> Result:
    """Return the mean of one score an item. Of these very items, only those without a score are unknown."""
    if "items" not in dimension.these:
        return mean(scores, clusters=dimension.clusters, bounds=dimension.bounds)
    present = scores[~np.isnan(scores)]
    if len(present) == len(scores) and len(scores):
        exact = float(present.mean())
        return Estimate(exact, exact, exact, len(scores), CENSUS)
    alike, missing = mean(scores, bounds=dimension.bounds), 1 - len(present) / max(len(scores), 1)
    if isinstance(alike, Unknown):
        return alike
    low, high = (alike.value + missing**0.5 * (end - alike.value) for end in (alike.low, alike.high))
    return Estimate(alike.value, low, high, alike.items, alike.method)


def bias_p(judge: Floats, people: Floats, clusters: Ints | None = None) -> float | None:
    """Return the p-value of the bias, by Student's t over items or clusters: `judge` has one score an item, `people` a
    column a person. Each item counts as often as people rated it, as in the bias itself."""
    ratings = (~np.isnan(people)).sum(axis=1)
    used = (ratings > 0) & ~np.isnan(judge)
    if used.sum() < FEWEST:
        return None
    pieces = None if clusters is None else clusters[used]
    apart = deviation(judge[used] - combine_mean(people[used]), pieces, ratings[used].astype(np.float64))
    if apart.error <= SMALLEST or apart.pieces < FEWEST:
        return None
    return student.two_sided_p(apart.value / apart.error, apart.pieces - 1)


def partly_asked_judge(name: str, at: int, dimension: DimensionScores, rng: np.random.Generator) -> RaterStatistics:
    """Compare a judge who was asked about some items only with people, on the items of the audit. Without an audit
    nothing is known of its scores of all items."""
    part, scores, skipped = dimension.of_audit, dimension.scores[:, at], dimension.skipped[at]
    if part is not None:
        statistics = rater_statistics(name, "judge", part.scores[:, at], part, rng)
        return statistics.model_copy(update={"spared": skipped, "audited": len(part.scores)})
    was_asked: Bools = np.asarray(~np.isnan(scores).all(axis=1))
    of_rated = was_asked[dimension.people.rated] if dimension.people.raters else was_asked
    statistics = _unknown_rater(name, "judge", SPARED)
    missing = float(1 - of_rated.mean()) if len(of_rated) else 1.0
    return statistics.model_copy(update={"items": int(of_rated.sum()), "missing": missing, "spared": skipped})


def _powered(whole: Floats, dimension: DimensionScores) -> PeoplesMean:
    if dimension.people.flaw is not None:
        unknown = Figure.unknown(dimension.people.flaw)
        return PeoplesMean(
            powered=unknown, people_alone=unknown, judges_weight=0.0, saved=None, saved_reason=dimension.people.flaw
        )
    means, chances = dimension.people.means(len(whole)), dimension.people.chances(len(whole))
    powered = powered_mean(
        whole, means, probabilities=chances, bounds=dimension.bounds, clusters=dimension.clusters,
        finite="items" in dimension.these,
    )  # fmt: skip
    return peoples_mean(powered, dimension.rater_spread, dimension.bounds)


def _against_people(
    name: str,
    kind: Literal["judge", "panel", "people"],
    comparison: Comparison,
    by_level: Comparison | None,
    dimension: DimensionScores,
) -> RaterStatistics:
    level_comparison = by_level or comparison
    return RaterStatistics(
        name=name,
        kind=kind,
        pearson=figure(comparison.pearson),
        spearman=figure(comparison.spearman),
        kendall=figure(comparison.kendall),
        kappa=level_figure(level_comparison.kappa, dimension),
        base_rate=share(comparison.base_rate),
        bias=figure(comparison.differences.bias),
        lower_limit=figure(comparison.differences.lower_limit),
        upper_limit=figure(comparison.differences.upper_limit),
        confusion=level_comparison.confusion.tolist() if level_comparison.confusion is not None else None,
        items=comparison.items,
        missing=comparison.missing,
    )


def _unknown_rater(name: str, kind: Literal["judge", "panel", "people"], reason: str) -> RaterStatistics:
    unknown = Figure.unknown(reason)
    return RaterStatistics(
        name=name, kind=kind, mean=unknown, pearson=unknown, spearman=unknown, kendall=unknown, kappa=unknown,
        base_rate=None, bias=unknown, lower_limit=unknown, upper_limit=unknown, confusion=None, items=0, missing=1.0,
    )  # fmt: skip


SEED = 1


def calibrations(
    job: JobScores, circumstances: ScoringContext, method: Method
) -> Iterator[CalibrationMap | NotCalibrated]:
    """Yield a map for each judge and dimension, and for the panel if there are several judges, or the reason why
    there is none."""
    for dimension in job.dimensions:
        for at, agent in enumerate(circumstances.agents):
            bound = circumstances.of_judge(agent, dimension.spec)
            about = {"judge": agent.name, "kind": "judge", "model": agent.model or "", "made_for": bound}
            sample = dimension if dimension.asked_everywhere[at] else dimension.of_audit
            flaw, rated = (SPARED, dimension) if sample is None else (None, sample)
            yield _learn_map(rated, rated.judges[:, at], method, about, flaw)
        if len(circumstances.agents) > 1:
            models = ", ".join(dict.fromkeys(agent.model or "" for agent in circumstances.agents))
            about = {
                "judge": "panel",
                "kind": "panel",
                "model": models,
                "made_for": circumstances.of_panel(dimension.spec),
            }
            about["judges"] = [agent.name for agent in circumstances.agents]
            yield _learn_map(dimension, panel_scores(job, dimension), method, about, _not_full(dimension))


def _not_full(dimension: DimensionScores) -> str | None:
    """Return why the panel's scores are not those of the full panel, which a later job has; None if they are."""
    rule = dimension.spec.panel
    same = rule.threshold is None and rule.escalate is not None and rule.escalate.lossless
    return (
        None
        if dimension.asked_everywhere.all() or same
        else "its scores are those of the judges who were asked, not of all"
    )


def _learn_map(
    dimension: DimensionScores, scores: Floats, method: Method, about: Mapping[str, Any], flaw: str | None
) -> CalibrationMap | NotCalibrated:
    if flaw is not None:
        return NotCalibrated(judge=about["judge"], dimension=dimension.spec.id, reason=flaw)
    people = dimension.people.means(len(scores))
    learned = learn(scores, people, method) if dimension.people.raters else Unknown(NOBODY_RATED)
    if dimension.spec.nominal:
        learned = Unknown(NO_MEAN)
    improvement = learned if isinstance(learned, Unknown) else gain(scores, people, method, np.random.default_rng(SEED))
    if isinstance(learned, Unknown) or isinstance(improvement, Unknown):
        reason = learned.reason if isinstance(learned, Unknown) else improvement.reason  # type: ignore[union-attr]
        return NotCalibrated(judge=about["judge"], dimension=dimension.spec.id, reason=reason)
    errors = map_errors(scores, people, learned, np.random.default_rng(SEED), dimension.clusters)
    factors = [[float(f"{factor:.6g}") for factor in point] for point in errors.tolist()]
    return CalibrationMap(
        **about, dimension=dimension.spec.id, method=method, x=list(learned.x), y=list(learned.y), items=learned.items,
        point_errors=factors, error=improvement.raw, calibrated_error=improvement.calibrated,
        gain=figure(improvement.fall),
    )  # fmt: skip


def calibrated_raters(
    job: JobScores, dimension: DimensionScores, panel: Floats, calibration: Calibration
) -> list[CalibratedRater]:
    """Return the statistics of each judge and of the panel (`panel` has one score an item) after calibration."""
    raters = [
        _calibrated_rater(dimension, dimension.judges[:, at], name, "judge", dimension.fits[at], calibration)
        for at, name in enumerate(job.judges)
    ]
    if len(job.judges) > 1:
        raters.append(_calibrated_rater(dimension, panel, "panel", "panel", dimension.fits[-1], calibration))
    return raters


def _calibrated_rater(
    dimension: DimensionScores,
    scores: Floats,
    name: str,
    kind: Literal["judge", "panel"],
    fit: Fit,
    calibration: Calibration,
) -> CalibratedRater:
    map_, raw = fit.usable_map(calibration), figure(mean(scores, clusters=dimension.clusters, bounds=dimension.bounds))
    if map_ is None:
        differs = f"the map was made with another {' and another '.join(fit.differing)}"
        unknown = Figure.unknown(fit.reason or differs)
        return CalibratedRater(
            name=name, kind=kind, differing=list(fit.differing), raw=raw, calibrated=unknown, bias=unknown
        )
    learned = ScoreMap(map_.method, tuple(map_.x), tuple(map_.y), map_.items)
    errors = np.array(map_.point_errors) if map_.point_errors else None
    corrected = learned.apply(scores)
    apart = corrected - dimension.people.means(len(scores))
    rated = bool(dimension.people.raters)
    bias = figure(mean(apart, clusters=dimension.clusters)) if rated else Figure.unknown(NOBODY_RATED)
    return CalibratedRater(
        name=name, kind=kind, method=map_.method, learned_on=map_.items, differing=list(fit.differing), raw=raw,
        calibrated=figure(
            calibrated_mean(scores, learned, errors, clusters=dimension.clusters, bounds=dimension.bounds)
        ),
        bias=bias, map_counts=errors is not None,
    )  # fmt: skip
