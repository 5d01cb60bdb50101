"""Agreement of judges with people, of people with each other, of judges among themselves, and of a judge with itself.

What a judge can be expected to reach is what a person reaches against the other people. Both are measured the same way,
over the same pairs, so that they can stand in neighbouring columns:

* correlations between a score and *the mean of the other people* (all who rated the item but one, each left out in
  turn; with one person, that one);
* kappa between a score and *one other person's score*, over all such pairs.

Pairs of one item are always drawn together, and with `clusters` the items of one cluster: intervals then speak of other
clusters. The raters are taken as they are: intervals speak of other items, not of other people.

Kappa falls when nearly all items belong to one level, however well people agree: read it beside the base rate, the
share of the commonest level.

Whether a judge may replace a person is tested as N. Calderon, R. Reichart and R. Dror propose in "The alternative
annotator test for LLM-as-a-judge" (ACL 2025, arXiv 2501.10970): each person in turn is held against the other people
beside the judge (`contests`, `replacement_p`).

The values of correlations come from scipy, of kappa from scikit-learn and statsmodels, of alpha from the package
krippendorff. The functions whose names end with `_sums` express a statistic by sums over items, which serve only the
resamples of `resampling.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import krippendorff
import numpy as np
import scipy

from dicast.app.analysis.estimates import Floats, Ints, Result, Unknown, below
from dicast.app.analysis.means import DRAWS, FEW, SMALLEST, Deviation, deviation
from dicast.app.analysis.resampling import EDGE, FEWEST_ITEMS, Pieces, Sums, interval, pairs, rows

# ruff: noqa: PLC0415  (these libraries take a second of CPU time to load)


Weighting = Literal["none", "linear", "quadratic"]
ROUNDING = 1e-9


def cohen(
    x: Floats, y: Floats, levels: Floats, weighting: Weighting, rng: np.random.Generator, *,
    item: Ints | None = None, clusters: Ints | None = None,
) -> Result:  # fmt: skip
    """Return Cohen's kappa of pairs of scores; a disagreement counts by its distance in places among `levels`
    (ascending).

    `linear` and `quadratic` are for levels with an order, `none` for labels. Pairs where either is NaN are left out.
    `item` gives the item of each pair, if several pairs belong to one, and `clusters` the cluster of each item, if they
    are drawn together.
    """
    both = ~(np.isnan(x) | np.isnan(y))
    pieces = Pieces.of((np.arange(len(x)) if item is None else item)[both], clusters)
    if pieces.items < 3:
        return Unknown(f"only {pieces.items} items were scored by both")
    cx, cy = codes(x[both], levels), codes(y[both], levels)
    if cx is None or cy is None:
        return Unknown("some scores are none of the scale's levels, as a mean is: kappa counts levels")
    if len(np.union1d(cx, cy)) == 1:
        return Unknown("everybody gave every item the same score")
    from sklearn.metrics import cohen_kappa_score

    name = None if weighting == "none" else weighting
    value = float(cohen_kappa_score(cx, cy, weights=name, labels=np.arange(len(levels))))
    penalty = penalties(len(levels), weighting)
    statistic = pairs(lambda a, b: cohen_sums(a, b, penalty), cx, cy, pieces=pieces)
    kappa = interval(value, pieces, statistic, rng, shape="correlation")
    weights = "no weights" if weighting == "none" else f"{weighting} weights"
    return kappa if isinstance(kappa, Unknown) else replace(kappa, method=f"{weights}, {kappa.method}")


def fleiss(matrix: Floats, levels: Floats, rng: np.random.Generator, clusters: Ints | None = None) -> Result:
    """Return Fleiss' kappa over the items (rows) that all raters (columns) scored; the levels have no order."""
    complete = np.flatnonzero(~np.isnan(matrix).any(axis=1))
    whole, pieces = matrix[complete], Pieces.of(complete, clusters)
    if matrix.shape[1] < 2:
        return Unknown("there is only one rater")
    if len(whole) < 3:
        return Unknown(f"only {len(whole)} items were scored by all {matrix.shape[1]} raters")
    coded = codes(whole, levels)
    if coded is None:
        return Unknown("some scores are none of the scale's levels, as a mean is: kappa counts levels")
    if np.ptp(coded) == 0:
        return Unknown("everybody gave every item the same score")
    from statsmodels.stats.inter_rater import fleiss_kappa

    counts = np.stack([(coded == level).sum(axis=1) for level in range(len(levels))], axis=1)
    value = float(fleiss_kappa(counts))
    statistic = rows(fleiss_sums, counts.astype(np.float64), pieces=pieces)
    return interval(value, pieces, statistic, rng, shape="correlation")


def base_rate(scores: Floats) -> float:
    """Return the share of the commonest score among all scores; NaN without any."""
    present = scores[~np.isnan(scores)]
    return float(np.unique(present, return_counts=True)[1].max() / present.size) if present.size else float("nan")


def codes(scores: Floats, levels: Floats) -> Ints | None:
    """Return each score's place among `levels`; None if one of them is no level."""
    places = np.searchsorted(levels, scores).clip(0, len(levels) - 1)
    return places.astype(np.int64) if np.array_equal(levels[places], scores) else None


def penalties(levels: int, weighting: Weighting) -> Floats:
    """Return the penalty of a disagreement between two levels (levels x levels); 0 on the diagonal."""
    apart = np.abs(np.subtract.outer(np.arange(levels), np.arange(levels))).astype(np.float64)
    return {"none": (apart > 0).astype(np.float64), "linear": apart, "quadratic": apart**2}[weighting]


def cohen_sums(x: Ints, y: Ints, penalty: Floats) -> Sums:
    size = len(penalty)
    levels = np.eye(size)

    def evaluate(sums: Floats) -> Floats:
        n, observed, given_x, given_y = sums[:, 0], sums[:, 1], sums[:, 2 : 2 + size], sums[:, 2 + size :]
        by_chance = ((given_x @ penalty) * given_y).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(1 - observed * n / by_chance)

    return Sums(np.column_stack([np.ones(len(x)), penalty[x, y], levels[x], levels[y]]), evaluate)


def fleiss_sums(counts: Floats) -> Sums:
    """Return Fleiss' kappa as sums, from how many raters gave an item each level (items x levels)."""
    raters = counts[0].sum()
    agreeing = (counts * (counts - 1)).sum(axis=1) / (raters * (raters - 1))

    def evaluate(sums: Floats) -> Floats:
        n = sums[:, :1]
        by_chance = ((sums[:, 2:] / (n * raters)) ** 2).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((sums[:, 1] / n[:, 0] - by_chance) / (1 - by_chance))

    return Sums(np.column_stack([np.ones(len(counts)), agreeing, counts]), evaluate)


Level = Literal["nominal", "ordinal", "interval"]


def alpha(
    matrix: Floats, levels: Floats, level: Level, rng: np.random.Generator, clusters: Ints | None = None
) -> Result:
    """Return alpha over items (rows) x raters (columns); NaN is a missing rating. Items with a single rating do not
    count.

    `levels` are the scale's values, ascending: ordinal alpha counts the ratings between two of them, nominal alpha
    whether they differ. Interval alpha needs no levels and takes any numbers.

    Krippendorff's alpha measures the agreement of any number of raters with any number of missing ratings.
    """
    rated_twice = np.flatnonzero((~np.isnan(matrix)).sum(axis=1) >= 2)
    pairable, pieces = matrix[rated_twice], Pieces.of(rated_twice, clusters)
    if len(pairable) < 3:
        return Unknown(f"only {len(pairable)} items have ratings by two or more")
    scores = pairable[~np.isnan(pairable)]
    if np.ptp(scores) == 0:
        return Unknown("everybody gave every item the same score")
    if level == "interval":
        value = krippendorff.alpha(reliability_data=pairable.T, level_of_measurement="interval")
        statistic = rows(interval_alpha_sums, pairable, pieces=pieces)
        return interval(float(value), pieces, statistic, rng, shape="correlation")
    if codes(scores, levels) is None:
        return Unknown("some scores are none of the scale's levels, as a mean is")
    counts = np.stack([(pairable == score).sum(axis=1) for score in levels], axis=1)
    used = counts.any(axis=0)
    value = krippendorff.alpha(
        value_counts=counts[:, used], value_domain=levels[used].tolist(), level_of_measurement=level
    )
    statistic = rows(lambda chosen: alpha_sums(chosen, level), counts[:, used].astype(np.float64), pieces=pieces)
    return interval(float(value), pieces, statistic, rng, shape="correlation")


def interval_alpha_sums(matrix: Floats) -> Sums:
    present = ~np.isnan(matrix)
    values = np.where(present, matrix - np.nanmean(matrix), 0.0)
    raters, total, squares = present.sum(axis=1), values.sum(axis=1), (values**2).sum(axis=1)
    within = 2 * (raters * squares - total**2) / (raters - 1)

    def evaluate(sums: Floats) -> Floats:
        n, s, q, observed = sums.T
        expected = 2 * (n * q - s**2) / (n - 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(1 - observed / expected)

    return Sums(np.stack([raters, total, squares, within], axis=1), evaluate)


def alpha_sums(counts: Floats, level: Level) -> Sums:
    """Return nominal or ordinal alpha as sums, from each item's counts of each level (items x levels).

    They follow K. Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011): coincidences within an item,
    expected ones from all values.
    """
    levels = counts.shape[1]
    within = counts[:, :, None] * (counts[:, None, :] - np.eye(levels))
    upper = np.triu_indices(levels)  # coincidences are symmetric, and their rows sum to the margins
    coincidences = within[:, *upper] / (counts.sum(axis=1) - 1)[:, None]
    to_margins = np.maximum(np.eye(levels)[upper[0]], np.eye(levels)[upper[1]])
    differ = np.flatnonzero(upper[0] != upper[1])
    low, high = upper[0][differ], upper[1][differ]

    def evaluate(sums: Floats) -> Floats:
        """Both sums have each pair of levels once instead of twice, which cancels out."""
        margins = sums @ to_margins
        apart = _distances(margins, low, high, level)
        by_chance = (margins[:, low] * apart * margins[:, high]).sum(axis=1) / (margins.sum(axis=1) - 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(1 - (sums[:, differ] * apart).sum(axis=1) / by_chance)

    return Sums(coincidences, evaluate)


def _distances(margins: Floats, low: Ints, high: Ints, level: Level) -> Floats:
    """Return the squared distances between the levels `low` and `high` in each resample (resamples x pairs)."""
    if level == "nominal":
        return np.ones((len(margins), len(low)))
    # Between two levels lie the ratings up to the middle of each: the sum from c to k less half of both ends.
    middle = np.cumsum(margins, axis=1) - margins / 2
    return np.asarray((middle[:, low] - middle[:, high]) ** 2)


Kind = Literal["pearson", "spearman", "kendall"]
MOST_LEVELS = 30


def correlation(
    x: Floats, y: Floats, kind: Kind, rng: np.random.Generator, *,
    item: Ints | None = None, clusters: Ints | None = None,
) -> Result:  # fmt: skip
    """Return the correlation of pairs of scores; pairs where either is NaN are left out.

    `item` gives the item of each pair, if several pairs belong to one: they are drawn together. `clusters` gives the
    cluster of each item, if these are drawn together, too.
    """
    both = ~(np.isnan(x) | np.isnan(y))
    pieces = Pieces.of((np.arange(len(x)) if item is None else item)[both], clusters)
    x, y = x[both], y[both]
    if pieces.items < 3:
        return Unknown(f"only {pieces.items} items were scored by both")
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return Unknown("one side gave every item the same score")
    value = _value(kind, x, y)
    statistic = pairs(_SUMS[kind], x, y, pieces=pieces)
    return interval(value, pieces, statistic, rng, shape="correlation")


def _value(kind: Kind, x: Floats, y: Floats) -> float:
    function = {"pearson": scipy.stats.pearsonr, "spearman": scipy.stats.spearmanr, "kendall": scipy.stats.kendalltau}[
        kind
    ]
    return float(function(x, y).statistic)


def pearson_sums(x: Floats, y: Floats) -> Sums:
    x, y = x - x.mean(), y - y.mean()

    def evaluate(sums: Floats) -> Floats:
        mx, my, xx, yy, xy = (sums[:, 1:] / sums[:, :1]).T
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((xy - mx * my) / np.sqrt((xx - mx * mx) * (yy - my * my)))

    return Sums(np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], axis=1), evaluate)


def spearman_sums(x: Floats, y: Floats) -> Sums:
    """Return Pearson's correlation of the midranks, which follow from how often each pair of scores was drawn."""
    member, xs, ys = _cells(x, y)
    ranks_x, ranks_y = _midranks(xs), _midranks(ys)

    def evaluate(counts: Floats) -> Floats:
        middle = (counts.sum(axis=1, keepdims=True) + 1) / 2
        rx, ry = ranks_x(counts) - middle, ranks_y(counts) - middle
        wx, wy = counts * rx, counts * ry
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((wx * ry).sum(axis=1) / np.sqrt((wx * rx).sum(axis=1) * (wy * ry).sum(axis=1)))

    return Sums(member, evaluate, symmetric=True)


def kendall_sums(x: Floats, y: Floats) -> Sums:
    """Return tau-b as a quadratic form in how often each pair of scores was drawn."""
    member, xs, ys = _cells(x, y)
    sign_x, sign_y = np.sign(np.subtract.outer(xs, xs)), np.sign(np.subtract.outer(ys, ys))
    forms = sign_x * sign_y, np.abs(sign_x), np.abs(sign_y)

    def evaluate(counts: Floats) -> Floats:
        concordance, pairs_x, pairs_y = (((counts @ form) * counts).sum(axis=1) for form in forms)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(concordance / np.sqrt(pairs_x * pairs_y))

    return Sums(member, evaluate, symmetric=True)


def _cells(x: Floats, y: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the membership of each pair in the distinct pairs of scores (0 or 1), and the two scores of each distinct
    pair."""
    distinct, codes = np.unique(np.stack([_coarse(x), _coarse(y)], axis=1), axis=0, return_inverse=True)
    member = np.zeros((len(x), len(distinct)))
    member[np.arange(len(x)), codes.ravel()] = 1
    return member, distinct[:, 0], distinct[:, 1]


def _coarse(x: Floats) -> Floats:
    """Return the scores, or for many levels their ranks in `MOST_LEVELS` steps, which suffice for the spread of a rank
    statistic."""
    levels, codes = np.unique(x, return_inverse=True)
    if len(levels) <= MOST_LEVELS:
        return x
    below = np.cumsum(np.bincount(codes))[codes]
    return np.floor((below - 1) * MOST_LEVELS / len(x))


def _midranks(values: Floats) -> Callable[[Floats], Floats]:
    levels, codes = np.unique(values, return_inverse=True)
    member = np.zeros((len(values), len(levels)))
    member[np.arange(len(values)), codes] = 1

    def ranks(counts: Floats) -> Floats:
        margin = counts @ member
        return np.asarray((np.cumsum(margin, axis=1) - (margin - 1) / 2)[:, codes])

    return ranks


_SUMS: dict[Kind, Callable[[Floats, Floats], Sums]] = {
    "pearson": pearson_sums,
    "spearman": spearman_sums,
    "kendall": kendall_sums,
}


LIMIT = 1.96


@dataclass(frozen=True, slots=True)
class Differences:
    """The mean of x - y, and the limits between which 95 % of the differences lie, each with its own interval.

    Limits of agreement: J. M. Bland and D. G. Altman, "Statistical methods for assessing agreement between two methods
    of clinical measurement", Lancet 327 (1986), 307-310. About 95 % of the differences lie between them.
    """

    bias: Result
    lower_limit: Result
    upper_limit: Result


def differences(
    x: Floats, y: Floats, rng: np.random.Generator, *, item: Ints | None = None, clusters: Ints | None = None
) -> Differences:
    """Return bias and limits of agreement of `x` against `y`; pairs where either is NaN are left out.

    `item` gives the item of each pair, if several pairs belong to one: they are drawn together. `clusters` gives the
    cluster of each item, if these are drawn together, too.
    """
    both = ~(np.isnan(x) | np.isnan(y))
    apart = (x - y)[both]
    pieces = Pieces.of((np.arange(len(x)) if item is None else item)[both], clusters)
    if pieces.items < 3:
        unknown = Unknown(f"only {pieces.items} items were scored by both")
        return Differences(unknown, unknown, unknown)

    def limit(places: float) -> Result:
        value = float(apart.mean() + places * apart.std(ddof=1))
        statistic = pairs(lambda difference: limit_sums(difference, places), apart, pieces=pieces)
        return interval(value, pieces, statistic, rng, shape="difference")

    return Differences(limit(0.0), limit(-LIMIT), limit(LIMIT))


def limit_sums(apart: Floats, places: float) -> Sums:
    """Return the mean of the differences plus `places` standard deviations."""
    middle = apart.mean()

    def evaluate(sums: Floats) -> Floats:
        n, mean, squares = sums[:, 0], sums[:, 1] / sums[:, 0], sums[:, 2] / sums[:, 0]
        return np.asarray(middle + mean + places * np.sqrt((squares - mean**2).clip(0) * n / (n - 1)))

    return Sums(np.stack([np.ones(len(apart)), apart - middle, (apart - middle) ** 2], axis=1), evaluate)


def icc(matrix: Floats, rng: np.random.Generator, *, of_mean: bool = False, clusters: Ints | None = None) -> Result:
    """Return ICC(2,1), or with `of_mean` ICC(2,k), over the items (rows) that all raters (columns) scored.

    ICC is the intraclass correlation, two-way random effects, absolute agreement: ICC(2,1) of one rater, ICC(2,k) of
    their mean. After P. E. Shrout and J. L. Fleiss, "Intraclass correlations: uses in assessing rater reliability",
    Psychological Bulletin 86 (1979), 420-428. They need every item rated by every rater: others are left out.
    """
    raters = matrix.shape[1]
    complete = np.flatnonzero(~np.isnan(matrix).any(axis=1))
    whole, pieces = matrix[complete], Pieces.of(complete, clusters)
    if raters < 2:
        return Unknown("there is only one rater")
    if len(whole) < 3:
        return Unknown(f"only {len(whole)} items were scored by all {raters} raters")
    if np.ptp(whole) == 0:
        return Unknown("everybody gave every item the same score")
    value = icc_sums(whole, of_mean=of_mean).value
    statistic = rows(lambda chosen: icc_sums(chosen, of_mean=of_mean), whole, pieces=pieces)
    return interval(value, pieces, statistic, rng, shape="correlation")


def icc_sums(matrix: Floats, *, of_mean: bool) -> Sums:
    matrix = matrix - matrix.mean()
    k = matrix.shape[1]

    def evaluate(sums: Floats) -> Floats:
        n, squared_means, squares = sums[:, 0], sums[:, 1], sums[:, 2]
        rater_means = sums[:, 3:] / n[:, None]
        correction = n * k * rater_means.mean(axis=1) ** 2
        targets = k * squared_means - correction
        raters = n * (rater_means**2).sum(axis=1) - correction
        error = (squares - correction - targets - raters) / ((n - 1) * (k - 1))
        targets, raters = targets / (n - 1), raters / (k - 1)
        rest = 0.0 if of_mean else (k - 1) * error
        share = 1 if of_mean else k
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((targets - error) / (targets + rest + share * (raters - error) / n))

    return Sums(
        np.column_stack([np.ones(len(matrix)), matrix.mean(axis=1) ** 2, (matrix**2).sum(axis=1), matrix]), evaluate
    )


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
    judge: Floats, people: Floats, level: Level, levels: Floats | None, rng: np.random.Generator,
    clusters: Ints | None = None,
) -> Comparison:  # fmt: skip
    """Compare a judge's scores (one per item) with people's (items x people, NaN where missing).

    `levels` are the scale's values, ascending; None for a scale of fractions, which has no kappa. `clusters` has each
    item's cluster, if intervals are to speak of other clusters.
    """
    item, who = np.nonzero(~np.isnan(people))
    others, scores = _mean_of_others(people, item, who), people[item, who]
    others = np.where(np.isnan(others), scores, others)
    missing = float((np.isnan(judge) | np.isnan(people).all(axis=1)).mean()) if len(judge) else 0.0
    with_mean, with_one = _Pairs(judge[item], others, item), _Pairs(judge[item], scores, item)
    return _comparison(with_mean, with_one, base_rate(people), missing, level, levels, rng, clusters)


def leading_judge(judges: Floats, people: Floats, clusters: Ints | None = None) -> tuple[int, float | None]:
    """Return which judge (column) correlates highest with people, on the items that all judges scored, and the p-value
    of its really being the highest; None where that cannot be tested.

    Each other judge's correlation is compared with the highest one on Fisher's scale, by the jackknife over items or
    clusters, since both are measured by the same people. The largest p counts, times the number of other judges: the
    highest of many alike was chosen for chance, too.
    """
    inside = ~np.isnan(judges).any(axis=1)
    item, who = np.nonzero(~np.isnan(people) & np.reshape(inside, (-1, 1)))
    count = judges.shape[1]
    if len(np.unique(item)) < FEWEST_ITEMS or count < 2:
        return 0, None
    others, scores = _mean_of_others(people, item, who), people[item, who]
    others = np.where(np.isnan(others), scores, others)
    piece = Pieces.of(item, clusters)
    if piece.count < FEWEST_ITEMS:
        return 0, None
    z = np.stack([_without_each(pearson_sums(judges[item, at], others), piece) for at in range(count)])
    best = int(np.nanargmax(np.where(np.isfinite(z[:, 0]), z[:, 0], -np.inf)))
    apart = np.delete(z[best] - z, best, axis=0)
    without = apart[:, 1:]
    spread = ((without - without.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    errors = np.sqrt(spread * (piece.count - 1) / piece.count)
    if not np.isfinite(apart).all() or (errors <= EDGE).any():
        return best, None
    least = float((apart[:, 0] / errors).min())
    return best, min(1.0, (count - 1) * below(-least, piece.count - 1))


def jackknifed_correlation(x: Floats, y: Floats, clusters: Ints | None = None) -> Deviation | None:
    """Return Fisher's z of the correlation of two scores an item, with its standard error by the jackknife over items
    or clusters; None where it is undefined."""
    if len(x) < FEWEST_ITEMS or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    piece = Pieces.of(np.arange(len(x)), clusters)
    if piece.count < FEWEST_ITEMS:
        return None
    z = _without_each(pearson_sums(x, y), piece)
    if not np.isfinite(z).all():
        return None
    error = float(np.sqrt(((z[1:] - z[1:].mean()) ** 2).sum() * (piece.count - 1) / piece.count))
    return Deviation(float(z[0]), error, piece.count) if error > EDGE else None


def _without_each(statistic: Sums, pieces: Pieces) -> Floats:
    """Return Fisher's z of the statistic, first of all pieces, then without each of them."""
    columns = np.stack(
        [np.bincount(pieces.codes, weights=column, minlength=pieces.count) for column in statistic.columns.T], axis=1
    )
    whole = columns.sum(axis=0, keepdims=True)
    return np.asarray(np.arctanh(statistic.evaluate(np.vstack([whole, whole - columns])).clip(EDGE - 1, 1 - EDGE)))


def person_with_others(
    people: Floats, level: Level, levels: Floats | None, rng: np.random.Generator, *, person: int | None = None,
    clusters: Ints | None = None,
) -> Comparison:  # fmt: skip
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
    return _comparison(with_mean, with_one, base_rate(people), missing, level, levels, rng, clusters)


def inter_rater_agreement(
    scores: Floats, level: Level, levels: Floats | None, rng: np.random.Generator, clusters: Ints | None = None
) -> InterRaterAgreement:
    """Return the agreement among raters (columns): judges, people, or the replicates of one judge (its
    self-consistency)."""
    numeric = level != "nominal"
    return InterRaterAgreement(
        alpha=NO_LEVELS
        if levels is None and level != "interval"
        else alpha(scores, _or_none(levels), level, rng, clusters),
        fleiss=NO_LEVELS if levels is None else fleiss(scores, levels, rng, clusters),
        icc_single=icc(scores, rng, clusters=clusters) if numeric else NO_DISTANCES,
        icc_mean=icc(scores, rng, of_mean=True, clusters=clusters) if numeric else NO_DISTANCES,
        base_rate=base_rate(scores),
        items=int((~np.isnan(scores)).any(axis=1).sum()),
        missing=float(np.isnan(scores).mean()) if scores.size else 0.0,
    )


def same_as_people(judge: Floats, people: Floats) -> Floats:
    """Return, for each item, the share of its people (columns) who gave the judge's score; NaN where one is missing."""
    present = ~np.isnan(people) & ~np.isnan(judge)[:, None]
    same = ((people == judge[:, None]) & present).sum(axis=1)
    count = present.sum(axis=1)
    return np.asarray(np.divide(same, count, out=np.full(len(judge), np.nan), where=count > 0))


def same_as_others(people: Floats) -> Floats:
    """Return, for each item, the share of its pairs of people who gave the same score; NaN with fewer than two."""
    shares = np.stack(
        [same_as_people(people[:, at], np.delete(people, at, axis=1)) for at in range(people.shape[1])], axis=1
    )
    present = ~np.isnan(shares)
    return np.asarray(
        np.divide(
            np.where(present, shares, 0.0).sum(axis=1), present.sum(axis=1), out=np.full(len(people), np.nan),
            where=present.any(axis=1),
        )
    )  # fmt: skip


FEWEST_REPLACED = 30
"""The fewest items of a person in the alternative annotator test, as its authors recommend."""


@dataclass(frozen=True, slots=True)
class Contest:
    """A judge against one person, item by item: whether the judge is as close to the other people as this person is, or
    closer (`wins`), and whether this person is as close to them as the judge, or closer (`losses`). Both hold where
    they are equally close. `item` is the item's row."""

    item: Ints
    wins: Floats
    losses: Floats


def contests(judge: Floats, people: Floats, *, nominal: bool) -> list[Contest]:
    """Return the contest of a judge (one score an item) with each person (columns of `people`), on items that others
    rated, too.

    Closeness is the root of the mean squared difference from the other people's scores; for labels without an order it
    is the share of the others who gave the same label.
    """

    def distance(scores: Floats, others: Floats) -> Floats:
        present = ~np.isnan(others)
        apart = (others != scores[:, None]).astype(np.float64) if nominal else (others - scores[:, None]) ** 2
        return np.asarray(np.where(present, apart, 0.0).sum(axis=1) / present.sum(axis=1))

    against = []
    for column in range(people.shape[1]):
        others = np.delete(people, column, axis=1)
        used = ~np.isnan(judge) & ~np.isnan(people[:, column]) & ~np.isnan(others).all(axis=1)
        ahead = distance(people[used, column], others[used]) - distance(judge[used], others[used])
        against.append(
            Contest(np.flatnonzero(used), np.where(ahead >= -ROUNDING, 1.0, 0.0), np.where(ahead <= ROUNDING, 1.0, 0.0))
        )
    return against


def replacement_p(
    contest: Contest, epsilon: float, weights: Floats | None = None, clusters: Ints | None = None
) -> float:
    """Return the p-value of "the judge loses more often than it wins, by `epsilon` or more": one-sided, by Student's t
    over items, which `weights` may weigh, or over the items' `clusters` (one for each row).

    Where few items tell the two apart (and all count alike) there is no standard error to rely on. Then it is the
    chance that a mean under random weights, with one more item at the worst possible value, reaches epsilon (see
    `means.bounded_mean`).
    """
    behind = contest.losses - contest.wins
    if weights is None and clusters is None and np.count_nonzero(behind) < FEW:
        counts = np.array([(behind == value).sum() for value in (-1, 0, 1)]) + np.array([0, 0, 1])
        drawn = np.random.default_rng(0).standard_gamma(counts.astype(np.float64), (DRAWS, 3))
        reached = drawn[:, 2] - drawn[:, 0] >= epsilon * drawn.sum(axis=1)
        return float((reached.sum() + 1) / (DRAWS + 1))
    deviations = deviation(behind, None if clusters is None else clusters[contest.item], weights)
    if deviations.error <= SMALLEST:
        return 1.0 if deviations.value >= epsilon else 0.0
    return below((deviations.value - epsilon) / deviations.error, deviations.pieces - 1)


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
    clusters: Ints | None,
) -> Comparison:
    no_differences = Differences(NO_DISTANCES, NO_DISTANCES, NO_DISTANCES)
    nominal = level == "nominal"

    def of_means(kind: Kind) -> Result:
        return correlation(mean.x, mean.y, kind, rng, item=mean.item, clusters=clusters)

    return Comparison(
        pearson=NO_DISTANCES if nominal else of_means("pearson"),
        spearman=NO_DISTANCES if nominal else of_means("spearman"),
        kendall=NO_DISTANCES if nominal else of_means("kendall"),
        kappa=NO_LEVELS
        if levels is None
        else cohen(single.x, single.y, levels, WEIGHTINGS[level], rng, item=single.item, clusters=clusters),
        differences=no_differences if nominal else differences(mean.x, mean.y, rng, item=mean.item, clusters=clusters),
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
