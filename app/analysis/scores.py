"""A job's scores as arrays, wherever they were read from, and the figures that a report has of them.

The functions from `figure` to `peoples_mean` convert results of this package to plain data for the report. Those after
them combine the judges' scores of an item into one, as the job says, and learn what that takes from the whole job.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from dicast.app.analysis.agreement import NO_LEVELS, InterRaterAgreement, Level
from dicast.app.analysis.combining import (
    CLOSE,
    COMBINATIONS,
    Cascade,
    combine_majority,
    combine_mean,
    dawid_skene,
    learned_weights,
    weighted_mean,
)
from dicast.app.analysis.estimates import Bools, Floats, Ints, Result, Unknown
from dicast.app.analysis.powered import Powered, RaterSpread, for_raters_alike, rater_spread
from dicast.app.domain.calibrated import Fit
from dicast.app.domain.calibration import Calibration
from dicast.app.domain.figure import Figure, Taken
from dicast.app.domain.judge_statistics import PeoplesMean, RaterAgreement, WorstCase
from dicast.app.domain.panel import NEARLY, UNLIKELY, LearnedPanel
from dicast.app.domain.probes import MeasuredProbeName
from dicast.app.domain.question import JobAnswer
from dicast.app.domain.report import ReportDimension

MOST_LEVELS = 20
"""Tables with more levels say no more than correlations do, and their memory grows with the square."""


@dataclass(frozen=True, slots=True)
class People:
    """People's ratings of one dimension. `scores` (rated items x raters, NaN where missing) are those of the items
    with the indices `rated`.

    `probabilities` is the probability with which each rated item was drawn, None if unknown. `flaw` says why known
    probabilities cannot be used.
    """

    rated: Ints
    raters: tuple[str, ...]
    scores: Floats
    probabilities: Floats | None = None
    flaw: str | None = None

    def means(self, items: int) -> Floats:
        """Return people's mean for each of all items, NaN where nobody rated."""
        result = np.full(items, np.nan)
        if self.raters:
            result[self.rated] = combine_mean(self.scores)
        return result

    def among(self, chosen: Bools) -> People:
        """Return the ratings of the chosen ones of all items, with the items' indices among the chosen."""
        inside = chosen[self.rated]
        chances = None if self.probabilities is None else self.probabilities[inside]
        places = (np.cumsum(chosen) - 1)[self.rated[inside]]
        return replace(self, rated=places, scores=self.scores[inside], probabilities=chances)

    def chances(self, items: int) -> Floats | None:
        """Return the probability with which each of all items was drawn, NaN where it is unknown."""
        if self.probabilities is None:
            return None
        result = np.full(items, np.nan)
        result[self.rated] = self.probabilities
        return result


NOBODY = People(np.empty(0, dtype=np.int64), (), np.empty((0, 0)))


def nothing() -> Floats:
    """Return the scores of no variants."""
    return np.empty((0, 0, 0))


@dataclass(frozen=True, slots=True)
class DimensionScores:
    """One dimension: the judges' scores (items x judges x replicates, NaN where missing), people's ratings, and the
    judges' scores of variants (variants x judges x replicates).

    For pairs that were judged in both orders, `orders` has the scores in each order (... x replicates x 2, the given
    order first), in favour of the pair's own A, and `scores` has both combined.
    """

    spec: ReportDimension
    scores: Floats
    people: People = NOBODY
    fits: Sequence[Fit] = ()
    """How the job's calibration fits each judge and, of several, the panel; none without a calibration."""
    orders: Floats | None = None
    varied: Floats = field(default_factory=nothing)
    skipped: Sequence[int] = ()
    """How many opinions of each judge an escalating panel did not need; empty where it asked everybody."""
    audited: Bools | None = None
    """On which items an escalating panel asked everybody all the same; None where it has no audit."""
    clusters: Ints | None = None
    """The cluster of each item, from the job; None where each item is its own."""
    these: Collection[Taken] = ()
    """What intervals take for all there is, from the job."""

    @property
    def asked_everywhere(self) -> Bools:
        """Which judges were asked about all items. The others were asked only about items on which the judges before
        had not settled the outcome, and these are no sample of all items."""
        return np.array([count == 0 for count in self.skipped] or [True] * self.scores.shape[1])

    @property
    def of_audit(self) -> DimensionScores | None:
        """The scores on the items of the audit, without their variants, None if there is no audit. All judges were
        asked about these items, which are a random sample of all, so they are representative for all judges."""
        if self.audited is None or not self.audited.any():
            return None
        return replace(
            self, scores=self.scores[self.audited], people=self.people.among(self.audited), varied=nothing(),
            orders=None if self.orders is None else self.orders[self.audited], skipped=(), audited=None,
            clusters=None if self.clusters is None else self.clusters[self.audited],
            these=frozenset(self.these) - {"items"},
        )  # fmt: skip

    @property
    def rater_spread(self) -> RaterSpread | None:
        """The spread of people's strictness; None where intervals speak of these raters alone, or there is one."""
        people = self.people
        if "raters" in self.these or not people.raters or self.spec.nominal:
            return None
        return rater_spread(people.scores, combine_mean(self.judges[people.rated]))

    @property
    def rated_clusters(self) -> Ints | None:
        """The cluster of each rated item."""
        return None if self.clusters is None else self.clusters[self.people.rated]

    @property
    def judges(self) -> Floats:
        """Each judge's mean over the replicates (items x judges)."""
        items, judges, replicates = self.scores.shape
        return combine_mean(self.scores.reshape(items * judges, replicates)).reshape(items, judges)

    @property
    def answers(self) -> Floats:
        """All scores of each judge (items x judges x rounds): each order of a pair is a round of its own."""
        return self.scores if self.orders is None else self.orders.reshape(*self.orders.shape[:2], -1)

    @property
    def labels(self) -> Floats:
        """Each judge's commonest score over the replicates (items x judges), for statistics that count labels and
        take no means."""
        items, judges, replicates = self.scores.shape
        if replicates == 1:
            return self.scores[:, :, 0]
        return combine_majority(self.scores.reshape(items * judges, replicates)).reshape(items, judges)

    @property
    def bounds(self) -> tuple[float, float]:
        return float(self.spec.scale_min), float(self.spec.scale_max)

    @property
    def levels(self) -> Floats | None:
        """The values of the scale, None if there are too many for a table."""
        low, high = self.spec.scale_min, self.spec.scale_max
        few = high - low < MOST_LEVELS or self.spec.kind == "labels"
        return np.arange(low, high + 1, dtype=np.float64) if few else None

    @property
    def level(self) -> Level:
        if self.spec.nominal:
            return "nominal"
        return "ordinal" if self.levels is not None else "interval"


def settled_orders(orders: Floats) -> Floats:
    """Combine the preferences in both orders (... x 2) into one, as app/domain/panel.py does, for arrays."""
    both = np.nan_to_num(orders)
    preferred = (both != 0).sum(axis=-1)
    turned = both.prod(axis=-1) < 0
    settled = np.where(turned, 0.0, both.sum(axis=-1) / preferred.clip(1))
    return np.where(np.isnan(orders).all(axis=-1), np.nan, settled)


@dataclass(frozen=True, slots=True)
class Labels:
    """The label of each item as an index into `names`; -1 for an item without a label."""

    names: tuple[str, ...]
    codes: Ints


@dataclass(frozen=True, slots=True)
class VariedItems:
    """The variants of items that were judged for probes: what was changed (an index into `labels`) in which `item`."""

    labels: tuple[str, ...]
    label: Ints
    item: Ints

    def with_labels(self, labels: Collection[str]) -> Bools:
        """Return which variants have one of these labels."""
        return np.isin(self.label, [code for code, label in enumerate(self.labels) if label in labels])


@dataclass(frozen=True, slots=True)
class Kinship:
    """The model families of the items' authors and of the judges (None if unknown)."""

    authors: Labels
    judges: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class StoppedJob:
    """A job that ended before all its `items` were judged, because its question was answered."""

    job_answer: JobAnswer
    items: int


@dataclass(frozen=True, slots=True)
class JobScores:
    """All scores of a job.

    `groups` are the metadata by which items are grouped, `cluster` says which items belong together (None: each is its
    own cluster), `probes` has what each measuring probe found of each item (NaN if unknown), `variants` are the
    variants that were judged, and `kinship` has the families of models, if the job's probes need them.
    """

    items: int
    judges: tuple[str, ...]
    dimensions: tuple[DimensionScores, ...]
    groups: Mapping[str, Labels] = field(default_factory=dict)
    cluster: tuple[str, Ints] | None = None
    probes: Mapping[MeasuredProbeName, Floats] = field(default_factory=dict)
    calibration: Calibration | None = None
    sides: tuple[Labels, Labels] | None = None
    """Who is A and who is B in each pair, if the job kept it."""
    lists: Ints | None = None
    """The list of candidates that each pair belongs to, if the job kept it."""
    halves: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """The half that each item belongs to, if a panel's rule learns from halves."""
    variants: VariedItems | None = None
    kinship: Kinship | None = None
    stopped: StoppedJob | None = None

    these: Collection[Taken] = ()
    """What intervals take for all there is. The items of a job that a question ended are a sample, whatever it says."""

    def __post_init__(self) -> None:
        """Hand what intervals speak of to the dimensions. Who takes the items for all takes their clusters so, too."""
        these = frozenset(self.these) - (frozenset() if self.stopped is None else {"items"})
        cluster = None if these & {"items", "clusters"} else self.cluster
        of_items = None if cluster is None else cluster[1]
        dimensions = tuple(replace(dimension, clusters=of_items, these=these) for dimension in self.dimensions)
        for name, value in (("these", these), ("cluster", cluster), ("dimensions", dimensions)):
            object.__setattr__(self, name, value)


def figure(result: Result) -> Figure:
    """Convert a result of the statistics into the figure that a report holds. Nothing else makes one that is known."""
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


def peoples_mean(powered: Powered, spread: RaterSpread | None, bounds: tuple[float, float]) -> PeoplesMean:
    """Convert people's mean with and without the judges' help: of raters like these, if their spread is known, and of
    these."""
    saved = powered.saved
    return PeoplesMean(
        powered=figure(for_raters_alike(powered.both, spread, bounds)),
        people_alone=figure(for_raters_alike(powered.people_alone, spread, bounds)),
        of_these_raters=None if spread is None else figure(powered.both),
        raters_apart=None if spread is None else spread.deviation,
        judges_weight=powered.judges_weight,
        saved=None if isinstance(saved, Unknown) else saved,
        saved_reason=saved.reason if isinstance(saved, Unknown) else None,
    )


FEWEST_RATED = 20
"""The fewest rated items in each half; with fewer, learned weights are noise."""


def with_learned_panels(job: JobScores) -> JobScores:
    """Return the job with everything that its panels' rules learn, unless it is there already."""
    return replace(job, dimensions=tuple(_learn(job, dimension) for dimension in job.dimensions))


def panel_scores(job: JobScores, dimension: DimensionScores) -> Floats:
    """Return one score an item, NaN for items without any score."""
    rule, learned_panel = dimension.spec.panel, dimension.spec.learned
    if rule.learns:
        assert learned_panel is not None, "see `with_learned_panels`"
        return (
            _likeliest(job, dimension, learned_panel)
            if learned_panel.prior
            else _by_halves(job, dimension, learned_panel)
        )
    if rule.combine == "weighted":
        return weighted_mean(dimension.judges, np.array([rule.given_weights[name] for name in job.judges]))
    scores = dimension.labels if dimension.spec.nominal else dimension.judges
    return scores[:, ~is_not_chief(job.judges, dimension)][:, 0] if rule.chief else COMBINATIONS[rule.combine](scores)


@dataclass(frozen=True, slots=True)
class Extremes:
    """One score an item if all judgements without a score had been the lowest, and if they had been the highest.

    `missing` counts these judgements by item, and `unscored` tells which items have no score at all.
    """

    low: Floats
    high: Floats
    missing: Ints
    unscored: Bools
    bounds: tuple[float, float]

    def worst_case(self, inside: Bools | None = None) -> WorstCase | None:
        """Return the bounds of the mean of these items; None if nothing is missing there."""
        inside = np.ones(len(self.low), dtype=bool) if inside is None else inside
        missing = int(self.missing[inside].sum())
        if not missing:
            return None
        return WorstCase(low=float(self.low[inside].mean()), high=float(self.high[inside].mean()), missing=missing)

    def peoples_worst_case(self, mean: Figure | None, inside: Bools | None = None) -> WorstCase | None:
        """Return the bounds of what people would say: nothing is known of the items without any score, and the others
        have this `mean`."""
        inside = np.ones(len(self.low), dtype=bool) if inside is None else inside
        share = float(self.unscored[inside].mean())
        if mean is None or mean.value is None or not share:
            return None
        low, high = ((1 - share) * mean.value + share * end for end in self.bounds)
        return WorstCase(low=low, high=high, missing=int(self.missing[inside & self.unscored].sum()))


def extremes(job: JobScores, dimension: DimensionScores, judge: int | None = None) -> Extremes | None:
    """Return the panel's, or a judge's, extreme scores; None where nothing is missing, where labels have no mean, and
    for a job that ended when its question was answered.

    These are bounds without any assumption (C. F. Manski, "Partial Identification of Probability Distributions",
    Springer 2003, chapter 1). What an escalating panel did not need is not missing.
    """
    everywhere, levels = dimension.asked_everywhere, dimension.levels
    if judge is not None:
        everywhere = everywhere & (np.arange(len(everywhere)) == judge)
    missing = np.isnan(dimension.scores) & everywhere[:, None]
    if dimension.spec.nominal or job.stopped is not None or not missing.any():
        return None
    # A vote need not grow with a vote: each level is tried. All other rules never fall where a score rises.
    votes = dimension.spec.panel.combine in ("majority", "dawid_skene") and levels is not None and judge is None
    tried = levels if votes and levels is not None else np.array(dimension.bounds)

    def with_missing(score: float) -> Floats:
        filled = replace(dimension, scores=np.where(missing, score, dimension.scores), orders=None)
        return panel_scores(job, filled) if judge is None else filled.judges[:, judge]

    each = np.stack([with_missing(score) for score in tried.tolist()])
    unknown = np.isnan(each).any(axis=0)  # an escalating panel's item about which nobody said anything
    low, high = (
        np.where(unknown, end, end_of(each, axis=0))
        for end, end_of in zip(dimension.bounds, (np.min, np.max), strict=True)
    )
    scores = dimension.judges if judge is None else dimension.judges[:, [judge]]
    unscored = np.asarray(np.isnan(scores).all(axis=1), dtype=np.bool_)
    return Extremes(low, high, missing.sum(axis=(1, 2)), unscored, dimension.bounds)


def is_not_chief(judges: Sequence[str], dimension: DimensionScores) -> Bools:
    """Return which judges were not told what the others say: all but a chief."""
    return np.array([name != dimension.spec.panel.chief for name in judges], dtype=bool)


def _learn(job: JobScores, dimension: DimensionScores) -> DimensionScores:
    rule = dimension.spec.panel
    if not rule.learns or dimension.spec.learned is not None:
        return dimension
    learned_panel = _errors(job, dimension) if rule.combine == "dawid_skene" else _weights(job, dimension)
    return replace(dimension, spec=dimension.spec.model_copy(update={"learned": learned_panel}))


def _weights(job: JobScores, dimension: DimensionScores) -> LearnedPanel:
    people = dimension.people.means(job.items)
    rated = ~np.isnan(people) & ~np.isnan(dimension.judges).any(axis=1)
    sizes = [int((rated & (job.halves == half)).sum()) for half in (0, 1)]
    equal = dict.fromkeys(job.judges, 1 / len(job.judges))
    if min(sizes) < FEWEST_RATED:
        reason = (
            f"weights are learned on {FEWEST_RATED} rated items with all scores or more in each half, and there are "
            f"{sizes[0]} and {sizes[1]}"
        )
        return LearnedPanel(items=sum(sizes), weights=equal, reason=reason)

    def of_items(inside: Bools) -> dict[str, float]:
        weights = learned_weights(dimension.judges, np.where(inside, people, np.nan))
        return dict(zip(job.judges, weights.tolist(), strict=True))

    halves = [of_items(job.halves == half) for half in (0, 1)]
    # The weights of all rated items would differ from those by which these are combined, and so shift people's mean.
    mean_weights = {name: (halves[0][name] + halves[1][name]) / 2 for name in job.judges}
    return LearnedPanel(items=sum(sizes), weights=mean_weights, halves=halves)


def _by_halves(job: JobScores, dimension: DimensionScores, learned_panel: LearnedPanel) -> Floats:
    """Combine rated items with the weights learned from the other half, and the other items with the weights learned
    from all."""
    scores = weighted_mean(dimension.judges, np.array([learned_panel.weights[name] for name in job.judges]))
    rated = ~np.isnan(dimension.people.means(job.items))
    for half, weights in enumerate(learned_panel.halves):
        other_half = rated & (job.halves != half)
        scores[other_half] = weighted_mean(
            dimension.judges[other_half], np.array([weights[name] for name in job.judges])
        )
    return scores


def _coded(dimension: DimensionScores) -> Floats:
    return np.where(np.isnan(dimension.labels), -1, dimension.labels - dimension.spec.scale_min)


def _errors(job: JobScores, dimension: DimensionScores) -> LearnedPanel:
    labels = dimension.spec.scale_max - dimension.spec.scale_min + 1
    estimates = dawid_skene(_coded(dimension).astype(np.int64), labels)
    errors = dict(zip(job.judges, estimates.errors.tolist(), strict=True))
    return LearnedPanel(items=job.items, prior=estimates.prior.tolist(), errors=errors)


def _likeliest(job: JobScores, dimension: DimensionScores, learned_panel: LearnedPanel) -> Floats:
    """Return each item's likeliest label, as a score of the scale; of several, the lowest."""
    codes = _coded(dimension).astype(np.int64)
    evidence = np.tile(np.log(np.clip(learned_panel.prior, UNLIKELY, None)), (job.items, 1))
    for at, name in enumerate(job.judges):
        has_label = codes[:, at] >= 0
        evidence[has_label] += np.log(np.clip(learned_panel.errors[name], UNLIKELY, None))[:, codes[has_label, at]].T
    likeliest = (evidence >= evidence.max(axis=1, keepdims=True) - NEARLY).argmax(axis=1)
    return np.where((codes < 0).all(axis=1), np.nan, likeliest + float(dimension.spec.scale_min))


def cascade(dimension: DimensionScores, kind: Literal["difference", "uncertainty"]) -> Cascade:
    """Return what a panel of the judges, in their order, says after each of them, by the mean of their scores. An
    `uncertainty` is the standard error of that mean from each judge's own answers, as in app/domain/escalation.py."""
    scores, answers = dimension.judges, dimension.answers
    stages = range(1, scores.shape[1] + 1)
    means = np.stack([combine_mean(scores[:, :count]) for count in stages], axis=1)
    if kind == "difference":
        apart = []
        for count in stages:
            some = scores[:, :count]
            several = (~np.isnan(some)).sum(axis=1) > 1
            spread = np.full(len(some), np.inf)
            spread[several] = np.nanmax(some[several], axis=1) - np.nanmin(some[several], axis=1)
            apart.append(spread)
        return Cascade(np.stack(apart, axis=1), means)
    present = ~np.isnan(answers)
    count_of = present.sum(axis=2)
    centred = np.where(present, answers - combine_mean(answers.reshape(-1, answers.shape[2])).reshape(scores.shape)[
        ..., None], 0.0)  # fmt: skip
    squared = np.divide(
        (centred**2).sum(axis=2), (count_of - 1) * count_of, out=np.full(scores.shape, np.inf), where=count_of > 1
    )
    return Cascade(np.sqrt(np.cumsum(squared, axis=1)) / np.arange(1, scores.shape[1] + 1), means)


def decided_items(dimension: DimensionScores) -> Bools | None:
    """Return which items the judges of a panel with a guarantee (`agree`) have decided; the others are left to people.
    None for a panel without one."""
    rule = dimension.spec.panel.escalate
    if rule is None or rule.agree is None:
        return None
    if rule.difference is not None:
        return cascade(dimension, "difference").decide(rule.difference - 2 * CLOSE)[0] >= 0
    return cascade(dimension, "uncertainty").decide(rule.uncertainty or 0.0)[0] >= 0
