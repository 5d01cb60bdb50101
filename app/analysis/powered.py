"""Estimates people's mean of all items, from judges' scores of all and people's of some.

Prediction-powered inference with power tuning: A. N. Angelopoulos, J. C. Duchi and T. Zrnic, "PPI++: efficient
prediction-powered inference" (arXiv 2311.01453), for means and whatever is one: shares over a threshold, win rates,
differences of two systems. The judges' mean over all items is corrected by how far they were off on the rated items;
their weight is the one that makes the interval narrowest, so that useless judges do no harm.

It is valid however biased the judges are, on one condition: which items people rated is a random choice, or one with
known probabilities (sampling.py), given as `probabilities`. It estimates the population that the items are drawn from,
as do the intervals of people's ratings alone, which stand beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dicast.app.analysis.estimates import CONFIDENCE, Bools, Estimate, Floats, Ints, Result, Unknown, quantile
from dicast.app.analysis.groups import Groups, differences_of_groups, rank_probabilities
from dicast.app.analysis.means import (
    FEWEST,
    SMALLEST,
    Deviation,
    bounded_mean,
    deviation,
    estimate,
    is_near_end,
    is_small,
    pieces_of,
)

FEWEST_RATERS = 2
MOST_LEVERAGE = 0.9
FEWEST_OF_GROUP = 10
NEAR_END_OF_GROUP = 1.5
"""Lower than for other means, because the judges' weight is made from the ratings of all groups."""
ROUNDING = 1e-20
"""Variances below this share of another one are rounding errors of zero."""
ALL_RATED = "people rated every judged item"
CENSUS = "census"
TOO_FEW = "ratings are too few, or too near an end of the scale, for judges' scores to make them more exact"


@dataclass(frozen=True, slots=True)
class Powered:
    """People's mean of all items: from both, and from people's ratings alone.

    `judges_weight` is how far the value moves if the judges' mean moves by 1: 0 for judges without information. `saved`
    is the factor by which people would have had to rate more items for an interval as narrow without the judges: 1
    means that they saved none. If people rated every item there is nothing to save, and the weight is 0.
    """

    both: Result
    people_alone: Result
    judges_weight: float
    saved: float | Unknown


@dataclass(frozen=True, slots=True)
class _Fit:
    """The two estimators of one sample, with their degrees of freedom."""

    both: Deviation
    alone: Deviation
    weight: float
    rated: int
    degrees: float
    unrated: int


def powered_mean(
    judges: Floats,
    people: Floats,
    *,
    probabilities: Floats | None = None,
    bounds: tuple[float, float] | None = None,
    weight: float | None = None,
    clusters: Ints | None = None,
    finite: bool = False,
) -> Powered:
    """Return people's mean of all items. `judges` and `people` have one number per item, `people` NaN for unrated ones.

    `probabilities` is how likely each item was to be rated; without them all are equally likely. `bounds` are the ends
    of the scale, as for `means.mean`: where ratings are few, or near an end, both estimates are then that of people's
    ratings alone, by `bounded_mean`. `weight` fixes the judges' weight instead of tuning it. With `clusters`, the
    cluster of each item, the intervals speak of other clusters, too. With `finite` they speak of these very items, of
    which only the unrated ones are unknown (W. G. Cochran, "Sampling Techniques" (1977), section 2.6).
    """
    both = ~np.isnan(judges) & ~np.isnan(people)
    if finite and both.any() and both.sum() == (~np.isnan(judges)).sum():
        exact = float(people[both].mean())
        census = Estimate(exact, exact, exact, int(both.sum()), CENSUS)
        return Powered(census, census, 0.0, Unknown(ALL_RATED))
    independent = None if probabilities is not None else pieces_of(people[both], _chosen(clusters, both))
    if bounds is not None and independent is not None and len(independent) >= FEWEST:
        if is_small(deviation(independent), bounds):
            return _alone(independent, bounds, bool(both.sum() == (~np.isnan(judges)).sum()))
    fitted = _fit(judges, people, probabilities, weight, clusters, finite=finite)
    if isinstance(fitted, Unknown):
        return _nothing(fitted)
    if bounds is not None and independent is not None and not bounds[0] < fitted.both.value < bounds[1]:
        return _alone(independent, bounds, bool(both.sum() == (~np.isnan(judges)).sum()))
    return _powered(fitted, bounds)


def powered_sequence(judges: Floats, people: Floats, *, planned: int, probabilities: Floats | None = None) -> Result:
    """Return people's mean with an interval that holds however often one looks, for ratings that come in random order
    and may end at any time. `planned` is the number of ratings for which it is narrowest.

    It is the asymptotic confidence sequence of I. Waudby-Smith, D. Arbour, R. Sinha, E. H. Kennedy and A. Ramdas
    ("Time-uniform central limit theory and asymptotic confidence sequences", Annals of Statistics 52, 2024, 2613-2640)
    around the prediction-powered mean. It is Unknown below `FEWEST_OF_SEQUENCE` ratings.
    """
    fitted = _fit(judges, people, probabilities, None)
    if isinstance(fitted, Unknown):
        return fitted
    count = fitted.degrees + 1
    if count < FEWEST_OF_SEQUENCE:
        return Unknown(f"it needs {FEWEST_OF_SEQUENCE} ratings or more, and there are {fitted.rated}")
    reach = sequence_factor(count, planned) * fitted.both.error
    value = fitted.both.value
    return Estimate(value, value - reach, value + reach, fitted.rated, "PPI++, anytime")


FEWEST_OF_SEQUENCE = 30


def sequence_factor(count: float, planned: int) -> float:
    """Return how many standard errors an interval reaches to either side that holds however often one looks."""
    error = 1 - CONFIDENCE
    tuned = (-2 * np.log(error) + np.log(1 - 2 * np.log(error))) / planned
    grown = count * tuned + 1
    return float(np.sqrt(grown / (count * tuned) * 2 * np.log(np.sqrt(grown) / error)))


def _chosen(clusters: Ints | None, rows: Bools) -> Ints | None:
    return None if clusters is None else clusters[rows]


def _alone(rated: Floats, bounds: tuple[float, float], all_rated: bool) -> Powered:
    """Return what people's ratings say without the judges."""
    mean = bounded_mean(rated, bounds)
    return Powered(mean, mean, 0.0, Unknown(ALL_RATED if all_rated else TOO_FEW))


def powered_share(judges: Floats, people: Floats, threshold: float, *, probabilities: Floats | None = None) -> Powered:
    """Return the share of items to which people would give `threshold` or more.

    Judges' plain scores predict it, because a judge that is a point too strict would be no help at the same threshold.
    """
    over = np.where(np.isnan(people), np.nan, people >= threshold)
    return powered_mean(judges, over, probabilities=probabilities, bounds=(0.0, 1.0))


def powered_win_rate(
    judges: Floats, people: Floats, *, probabilities: Floats | None = None, clusters: Ints | None = None,
    finite: bool = False,
) -> Powered:  # fmt: skip
    """Return how often people would prefer A: 1 where A won, 0 where B did, 0.5 for a tie."""
    return powered_mean(
        judges, people, probabilities=probabilities, bounds=(0.0, 1.0), clusters=clusters, finite=finite
    )


def powered_difference(
    judges: tuple[Floats, Floats],
    people: tuple[Floats, Floats],
    *,
    paired: bool,
    probabilities: tuple[Floats, Floats] | None = None,
) -> Powered:
    """Return people's mean of system A less that of system B. Paired systems answered the same items, row by row.

    A pair counts as rated if both of its answers are. For paired items only the first probabilities are read: how
    likely the pair was to be rated.
    """
    if paired:
        chances = None if probabilities is None else probabilities[0]
        return powered_mean(judges[0] - judges[1], people[0] - people[1], probabilities=chances)
    fits = [
        _fit(judges[side], people[side], None if probabilities is None else probabilities[side], None)
        for side in (0, 1)
    ]
    for fitted in fits:
        if isinstance(fitted, Unknown):
            return _nothing(fitted)
    a, b = (fitted for fitted in fits if isinstance(fitted, _Fit))
    apart = _Fit(
        a.both.minus(b.both),
        a.alone.minus(b.alone),
        (a.weight + b.weight) / 2,
        min(a.rated, b.rated),
        min(a.degrees, b.degrees),
        a.unrated + b.unrated,
    )
    return _powered(apart, None)


def powered_groups(
    judges: Floats,
    people: Floats,
    groups: npt.ArrayLike,
    clusters: npt.ArrayLike,
    rng: np.random.Generator,
    *,
    probabilities: Floats | None = None,
    bounds: tuple[float, float] | None = None,
) -> Groups:
    """Compare groups by people's means of all their items: one judgement, rating (NaN where there is none), group and
    cluster an item.

    The judges have one weight for all groups, tuned within them: judges who favour a group shift no difference, since
    each group's mean is corrected by how far they were off on that group's own rated items. A group of which people
    rated fewer than `FEWEST_OF_GROUP` items, or gave all of them the same score, is unknown.
    """
    usable = ~np.isnan(judges)
    f, y = judges[usable], people[usable]
    names, group = np.unique(np.asarray(groups)[usable].astype(str), return_inverse=True)
    cluster = np.unique(np.asarray(clusters)[usable], return_inverse=True)[1]
    chances = np.ones(len(f)) if probabilities is None else probabilities[usable]
    comparable = np.array(
        [_is_comparable(y[group == at], chances[group == at]) for at in range(len(names))], dtype=bool
    )
    inside = comparable[group] if len(names) else np.zeros(0, dtype=bool)
    fit = _GroupFit.of(f[inside], y[inside], group[inside], cluster[inside], chances[inside], len(names))
    means = tuple(
        _group_mean(fit, at, y[group == at], bounds if probabilities is None else None)
        if comparable[at]
        else Unknown(f"people rated {int((~np.isnan(y[group == at])).sum())} of its items, all alike or too few")
        for at in range(len(names))
    )
    texts = tuple(map(str, names))
    differences = differences_of_groups(texts, fit.values, fit.influence, fit.pieces, method="PPI++ by item")
    ranks = (
        rank_probabilities(fit.values, fit.influence.T @ fit.influence, rng)
        if comparable.all() and len(names)
        else None
    )
    return Groups(texts, means, differences, ranks)


def _is_comparable(y: Floats, chances: Floats) -> bool:
    rated = ~np.isnan(y)
    drawn = chances[rated]
    return bool(rated.sum() >= FEWEST_OF_GROUP and np.ptp(y[rated]) > 0 and ((drawn > 0) & (drawn <= 1)).all())


def _group_mean(fit: _GroupFit, at: int, people: Floats, bounds: tuple[float, float] | None) -> Result:
    rated = people[~np.isnan(people)]
    if bounds is not None and fit.single and is_near_end(deviation(rated), bounds, NEAR_END_OF_GROUP):
        return bounded_mean(rated, bounds)
    error = float(np.sqrt((fit.influence[:, at] ** 2).sum()))
    pieces = float(fit.pieces[at])
    summary = Deviation(float(fit.values[at]), error, len(rated))
    return estimate(summary, degrees=pieces - 1, items=len(rated), method="PPI++ by item", bounds=bounds)


@dataclass(frozen=True, slots=True)
class _GroupFit:
    """People's mean of each group, how far each cluster (row) moves each of them (column), and the number of
    independent ratings of each. `single` says that each item is its own cluster."""

    values: Floats
    influence: Floats
    pieces: Floats
    single: bool

    @classmethod
    def of(cls, f: Floats, y: Floats, group: Ints, cluster: Ints, chances: Floats, groups: int) -> _GroupFit:
        rated = ~np.isnan(y)
        member = np.eye(groups)[group] if len(group) else np.zeros((0, groups))
        share = np.where(rated, 1 / np.where(rated, chances, 1.0), 0.0)
        share = share / np.maximum((member.T @ share)[group], SMALLEST)
        plain = 1 / np.maximum(member.sum(axis=0)[group], 1)
        y = np.where(rated, y, 0.0)
        centred_y, centred_f = (of - (member.T @ (share * of))[group] for of in (y, f))
        pull = plain * (f - (member.T @ (plain * f))[group]) - share * centred_f
        power, strength = float((pull**2).sum()), float(((share * centred_f) ** 2).sum())
        tuned = -float((share * centred_y * pull).sum()) / power if power > ROUNDING * strength and strength else 0.0
        weight = max(tuned, 0.0)
        values = member.T @ (weight * plain * f + share * (y - weight * f))
        # As in `_fit`: each rated item as if the mean and the weight had been made without it.
        lever = share + ((share * centred_f) ** 2 / strength if strength and weight else 0.0)
        residual = share / (1 - lever.clip(max=MOST_LEVERAGE)) * (centred_y - weight * centred_f)
        influence = weight * plain * (f - (member.T @ (plain * f))[group]) + residual
        count = int(cluster.max()) + 1 if len(cluster) else 0
        columns = [np.bincount(cluster, weights=influence * member[:, at], minlength=count) for at in range(groups)]
        shares = [np.bincount(cluster, weights=share * member[:, at], minlength=count) for at in range(groups)]
        pieces = np.array([1 / max(float((column**2).sum()), SMALLEST) for column in shares])
        single = len(np.unique(cluster)) == len(cluster)
        correction = (pieces - 1) / pieces if single else pieces / np.maximum(pieces - 1, 1)
        matrix = np.stack(columns, axis=1) if columns else np.zeros((0, 0))
        return cls(
            values, matrix * np.sqrt(correction), np.where(np.isin(np.arange(groups), group), pieces, 0.0), single
        )


def _fit(
    judges: Floats, people: Floats, probabilities: Floats | None, weight: float | None, clusters: Ints | None = None,
    *, finite: bool = False,
) -> _Fit | Unknown:  # fmt: skip
    usable = ~np.isnan(judges)
    rated = usable & ~np.isnan(people)
    if rated.sum() < FEWEST:
        return Unknown(f"people rated {rated.sum()} of the judged items, and it needs {FEWEST} or more")
    chances = np.full(len(judges), rated.sum() / usable.sum()) if probabilities is None else probabilities
    if not ((chances[rated] > 0) & (chances[rated] <= 1)).all():
        return Unknown("a rated item had no known probability of being rated")
    y, f, shares = people[rated], judges[rated], 1 / chances[rated]
    if np.ptp(y) == 0:
        return Unknown(f"people gave all {len(y)} rated items the same score")
    is_rated = rated[usable]
    piece = np.arange(len(is_rated)) if clusters is None else np.unique(clusters[usable], return_inverse=True)[1]
    if len(np.unique(piece[is_rated])) < FEWEST:
        return Unknown(
            f"people rated items of {len(np.unique(piece[is_rated]))} clusters, and it needs {FEWEST} or more"
        )
    # How much of each item's error counts: all of it, or for these very items that of the unrated ones.
    counts = np.sqrt(1 - chances[rated]) if finite else np.ones(len(y))
    alone = deviation(y, piece[is_rated], shares)
    if finite:
        alone = Deviation(alone.value, alone.error * _root_mean(counts, shares), alone.pieces)
    tuned = weight if weight is not None else _tuned(judges[usable], y, f, is_rated, shares, piece, counts, finite)
    residual = deviation(y - tuned * f, None, shares)
    value = tuned * float(judges[usable].mean()) + residual.value
    # Each piece's influence on the value: what the judges say of it, and, where it is rated, how far they are off
    # there. The latter as if the piece had been left out of the mean and of the weight it is compared with (the
    # jackknife): with few ratings, and the more with unlike weights, a residual is smaller than its error.
    share = shares / shares.sum()
    lever = share * (1 + (_leverage(f, share) if weight is None and tuned else 0.0))
    of_rated = piece[is_rated]
    off = _summed(counts * share * (y - tuned * f - residual.value), of_rated, piece)
    own = 0.0 if finite else tuned
    influence = _summed(own * (judges[usable] - judges[usable].mean()) / usable.sum(), piece, piece)
    influence += off / (1 - _summed(lever, of_rated, piece).clip(max=MOST_LEVERAGE))
    pieces = 1 / float((_summed(share, of_rated, piece) ** 2).sum())
    error = float(np.sqrt((influence**2).sum() * (pieces - 1) / pieces))
    return _Fit(Deviation(value, error, len(y)), alone, tuned, len(y), pieces - 1, int((~is_rated).sum()))


def _root_mean(counts: Floats, shares: Floats) -> float:
    return float(np.sqrt(np.average(counts**2, weights=shares**2)))


def _summed(values: Floats, piece: Ints, pieces: Ints) -> Floats:
    """Return the sum of the values of each of all `pieces`."""
    return np.asarray(np.bincount(piece, weights=values, minlength=int(pieces.max()) + 1), dtype=np.float64)


def _leverage(f: Floats, share: Floats) -> Floats:
    """Return the weight of a rated item's judgement in the judges' weight, as a multiple of its share."""
    apart = (f - np.average(f, weights=share)) ** 2
    return np.asarray(apart / np.average(apart, weights=share))


def _tuned(
    all_judged: Floats, y: Floats, f: Floats, is_rated: Bools, shares: Floats, piece: Ints, counts: Floats, finite: bool
) -> float:
    """Return the weight that minimises the variance of the pieces' influences, between 0 and the largest that can
    help."""
    if np.ptp(f) == 0 or np.ptp(all_judged) == 0:
        return 0.0
    share = shares / shares.sum()
    influence = np.zeros(len(all_judged))
    influence[is_rated] = counts * share * (y - np.average(y, weights=shares))
    pull = np.zeros(len(all_judged)) if finite else (all_judged - all_judged.mean()) / len(all_judged)
    pull[is_rated] -= counts * share * (f - np.average(f, weights=shares))
    influence, pull = _summed(influence, piece, piece), _summed(pull, piece, piece)
    power, reference = float((pull**2).sum()), float(((share * (f - f.mean())) ** 2).sum())
    if power <= ROUNDING * reference:  # all were rated: the judges' mean of all is that of the rated
        return 0.0
    return float(max(-(influence * pull).sum() / power, 0.0))


@dataclass(frozen=True, slots=True)
class RaterSpread:
    """The standard deviation of raters' strictness, and the standard error that it leaves in the mean of these
    `raters` if that is taken for the mean of raters like them."""

    deviation: float
    error: float
    raters: int

    @property
    def reach(self) -> float:
        """How far the mean of raters like these may lie from the mean of these, to either side."""
        return quantile((1 + CONFIDENCE) / 2, self.raters - 1) * self.error


def rater_spread(people: Floats, judge: Floats) -> RaterSpread | None:
    """Return how far raters differ, from their ratings (items x raters, NaN where missing); None for fewer than two.

    The model has random effects of items and raters, fitted by moments: each rater's strictness by least squares within
    items (C. R. Henderson's third method, Biometrics 9 (1953), 226-252), less what chance adds to its variance. Where
    raters share too few items to be compared, their differences from the `judge` (one score an item) take the items'
    place; then whoever rates what must be a matter of chance.
    """
    rated = ~np.isnan(people)
    people, rated = people[:, rated.any(axis=0)], rated[:, rated.any(axis=0)]
    raters = people.shape[1]
    if raters < FEWEST_RATERS:
        return None
    of_item = rated.sum(axis=1, keepdims=True)
    weights = np.where(rated, 1 / of_item.clip(1), 0.0).sum(axis=0)
    share = weights / weights.sum()
    compared = within_items(people, rated)
    fit = compared[:2] if compared is not None else _beside_judge(people, rated, judge)
    if fit is None:
        return None
    strictness, noise = fit
    squares = float(((strictness - strictness.mean()) ** 2).sum())
    variance = max(0.0, (squares - noise) / (raters - 1))
    # With two raters, nothing is taken off for chance in the error: it would often leave none.
    of_error = squares / (raters - 1) if raters == FEWEST_RATERS else variance
    return RaterSpread(float(np.sqrt(variance)), float(np.sqrt(of_error * (share**2).sum())), raters)


def within_items(people: Floats, rated: Bools) -> tuple[Floats, float, float] | None:
    """Return each rater's strictness, what chance adds to their sum of squares, and the residual variance; None if not
    all can be compared."""
    shared = rated.sum(axis=1) > 1
    inside, y = rated[shared].astype(np.float64), np.where(rated[shared], people[shared], 0.0)
    count = inside.sum(axis=1, keepdims=True)
    raters = people.shape[1]
    laplacian = np.diag(inside.sum(axis=0)) - (inside / count.clip(1)).T @ inside
    freedom = inside.sum() - len(inside) - (raters - 1)
    if freedom < 1 or np.linalg.matrix_rank(laplacian, tol=SMALLEST * len(inside), hermitian=True) < raters - 1:
        return None
    inverse = np.linalg.inv(laplacian + 1 / raters) - 1 / raters
    apart = inside * (y - y.sum(axis=1, keepdims=True) / count.clip(1))
    strictness = inverse @ apart.sum(axis=0)
    residual = max(0.0, float((apart**2).sum() - strictness @ apart.sum(axis=0))) / freedom
    return strictness, residual * float(np.trace(inverse)), residual


def _beside_judge(people: Floats, rated: Bools, judge: Floats) -> tuple[Floats, float] | None:
    """Return the same from ratings less what follows from the judge's scores."""
    item, rater = np.nonzero(rated & ~np.isnan(judge)[:, None])
    raters, y, f = people.shape[1], people[item, rater], judge[item]
    counts = np.bincount(rater, minlength=raters)
    if counts.min() < 1 or len(y) <= raters + 1:
        return None
    slope = float(((f - f.mean()) * (y - y.mean())).sum() / max(float(((f - f.mean()) ** 2).sum()), SMALLEST))
    apart = y - slope * f
    strictness = np.bincount(rater, weights=apart, minlength=raters) / counts
    residual = float(((apart - strictness[rater]) ** 2).sum()) / (len(y) - raters)
    return strictness, residual * float((1 / counts).sum()) * (raters - 1) / raters


def for_raters_alike(result: Result, spread: RaterSpread | None, bounds: tuple[float, float] | None = None) -> Result:
    """Return these raters' mean as that of raters like them. Both errors are independent, so each side's reach is the
    root of the sum of squares of the two reaches (G. Y. Zou and A. Donner, Statistics in Medicine 27 (2008),
    1693-1702)."""
    if spread is None or isinstance(result, Unknown):
        return result
    low = result.value - float(np.hypot(result.value - result.low, spread.reach))
    high = result.value + float(np.hypot(result.high - result.value, spread.reach))
    if bounds is not None:
        low, high = max(low, min(bounds[0], result.low)), min(high, max(bounds[1], result.high))
    return Estimate(result.value, low, high, result.items, f"{result.method}, raters at random", result.confidence)


def _powered(fitted: _Fit, bounds: tuple[float, float] | None) -> Powered:
    both = estimate(fitted.both, degrees=fitted.degrees, items=fitted.rated, method="PPI++", bounds=bounds)
    alone = estimate(fitted.alone, degrees=fitted.degrees, items=fitted.rated, method="t", bounds=bounds)
    saved: float | Unknown = Unknown("one of the intervals is not known")
    if not fitted.unrated:
        saved = Unknown(ALL_RATED)
    elif isinstance(both, Estimate) and isinstance(alone, Estimate):
        saved = (fitted.alone.error / fitted.both.error) ** 2
    return Powered(both, alone, fitted.weight, saved)


def _nothing(reason: Unknown) -> Powered:
    return Powered(reason, reason, 0.0, reason)
