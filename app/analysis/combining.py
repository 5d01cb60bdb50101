"""Combines several judges' opinions of one item into one score.

All functions take items (rows) x judges (columns), NaN where an opinion is missing, and return one number per item, NaN
without any opinion. Workers combine one item without libraries, by `app/domain/panel.py`;
`tests/domain/test_panel.py` holds the two to each other by random opinions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from scipy import special

from dicast.app.analysis.estimates import Estimate, Floats, Ints, Result, Unknown
from dicast.app.analysis.resampling import Pieces, Sums, interval, rows
from dicast.app.domain.panel import TRIMMED_SHARE, UNLIKELY

RIDGE = 1e-6


def combine_mean(scores: Floats) -> Floats:
    return weighted_mean(scores, np.ones(scores.shape[1]))


def combine_median(scores: Floats) -> Floats:
    """Return the middle score; of an even number the mean of the two in the middle."""
    return _each_row(scores, np.nanmedian)


def combine_trimmed(scores: Floats, share: float = TRIMMED_SHARE) -> Floats:
    """Return the mean without the lowest and highest `share` of an item's scores each, but at least one each of three
    or more.

    With one or two scores it is their mean.
    """
    result = np.full(len(scores), np.nan)
    counts = (~np.isnan(scores)).sum(axis=1)
    for count in np.unique(counts[counts > 0]):
        rows = counts == count
        ordered = np.sort(scores[rows], axis=1)[:, :count]
        cut = max(int(count * share), 1) if count > 2 else 0
        result[rows] = ordered[:, cut : count - cut].mean(axis=1)
    return result


def combine_majority(scores: Floats) -> Floats:
    """Return the commonest score; of several equally common ones the middle one, the lower of two in the middle."""

    def most(row: Floats) -> float:
        levels, counts = np.unique(row[~np.isnan(row)], return_counts=True)
        tied = levels[counts == counts.max()]
        return float(tied[(len(tied) - 1) // 2])

    return np.array([most(row) if not np.isnan(row).all() else np.nan for row in scores])


def combine_worst(scores: Floats) -> Floats:
    """Return the lowest score: one judge that finds a fault is enough."""
    return _each_row(scores, np.nanmin)


def weighted_mean(scores: Floats, weights: Floats) -> Floats:
    """Return the mean with one weight per judge (0 or more, not all 0); a missing opinion's weight goes to the
    others."""
    if len(weights) != scores.shape[1] or not (np.isfinite(weights) & (weights >= 0)).all() or weights.sum() == 0:
        raise ValueError("weights are finite numbers, 0 or more, one a judge, and not all 0")
    present = ~np.isnan(scores)
    total = present @ weights
    sums = np.where(present, scores, 0.0) @ weights
    return np.asarray(np.divide(sums, total, out=np.full(len(scores), np.nan), where=total > 0))


def learned_weights(scores: Floats, people: Floats) -> Floats:
    """Return weights, 0 or more with sum 1, for which the mean of the judges' deviations best follows people's.

    They come from non-negative least squares on the deviations from each judge's own mean, so a judge's bias has no
    effect here. They rest on items with all opinions and a rating; they are equal if these teach nothing. Use them on
    other items than those they were learned on.
    """
    judges = scores.shape[1]
    equal = np.full(judges, 1 / judges)
    usable = ~(np.isnan(scores).any(axis=1) | np.isnan(people))
    if usable.sum() <= judges:
        return equal
    x, y = scores[usable] - scores[usable].mean(axis=0), people[usable] - people[usable].mean()
    weights = _least_squares(x, y)
    return weights / weights.sum() if weights.sum() > RIDGE else equal


def _least_squares(x: Floats, y: Floats) -> Floats:

    # A little is added to the diagonal: two judges who say the same share their weight.
    ridge = np.sqrt(RIDGE * (x**2).sum()) * np.eye(x.shape[1])
    return np.asarray(scipy.optimize.nnls(np.vstack([x, ridge]), np.concatenate([y, np.zeros(x.shape[1])]))[0])


def _each_row(scores: Floats, function: Callable[..., Floats]) -> Floats:
    result = np.full(len(scores), np.nan)
    rows = ~np.isnan(scores).all(axis=1)
    if rows.any():
        result[rows] = function(scores[rows], axis=1)
    return result


COMBINATIONS: dict[str, Callable[[Floats], Floats]] = {
    "mean": combine_mean,
    "median": combine_median,
    "trimmed": combine_trimmed,
    "majority": combine_majority,
    "worst": combine_worst,
}
"""The combinations without parameters, by name."""


ROUNDS = 1000
SETTLED = 1e-9


@dataclass(frozen=True, slots=True)
class Labelled:
    """`labels` is each item's likeliest label (-1 without any opinion), `probabilities` items x labels,
    `errors` judges x true labels x given labels, `prior` how common each label is."""

    labels: Ints
    probabilities: Floats
    errors: Floats
    prior: Floats


def dawid_skene(votes: Ints, labels: int, *, rounds: int = ROUNDS) -> Labelled:
    """Estimate labels of items (rows) from judges (columns), each 0 to labels - 1, or -1 where an opinion is missing.

    Raises ValueError for a label out of range, or if no item has any opinion.

    The labels come from several judges of different skill, after A. P. Dawid and A. M. Skene, "Maximum likelihood
    estimation of observer error-rates using the EM algorithm", Journal of the Royal Statistical Society C 28 (1979),
    20-28. Each judge has a table of errors: how often it says b if a is true. Tables and true labels are estimated
    together, in turns. The method needs no ratings by people, and assumes that the judges' errors are independent: what
    they all get wrong in the same way it takes for the truth.
    """
    if ((votes < -1) | (votes >= labels)).any():
        raise ValueError(f"labels are 0 to {labels - 1}, or -1 where one is missing")
    given_labels = (votes[:, :, None] == np.arange(labels)).astype(np.float64)
    opinions = given_labels.sum(axis=(1, 2))
    if not opinions.any():
        raise ValueError("no item has an opinion")
    some = opinions > 0
    probabilities = np.full((len(votes), labels), 1 / labels)
    probabilities[some] = given_labels[some].sum(axis=1) / opinions[some, None]
    for _ in range(rounds):
        prior = probabilities[some].mean(axis=0)
        errors = np.einsum("ia,ijb->jab", probabilities, given_labels)
        totals = errors.sum(axis=2, keepdims=True)
        errors = np.divide(errors, totals, out=np.full_like(errors, 1 / labels), where=totals > 0)
        evidence = np.log(prior.clip(UNLIKELY)) + np.einsum("ijb,jab->ia", given_labels, np.log(errors.clip(UNLIKELY)))
        after = np.exp(evidence - evidence.max(axis=1, keepdims=True))
        after /= after.sum(axis=1, keepdims=True)
        moved = np.abs(after - probabilities)[some].max()
        probabilities = after
        if moved < SETTLED:
            break
    return Labelled(np.where(some, probabilities.argmax(axis=1), -1), probabilities, errors, prior)


LEAST = 1e-3


def error_correlation(
    judges: Floats, people: Floats, rng: np.random.Generator, *, exact: bool = False, clusters: Ints | None = None
) -> Result:
    """Return the mean correlation of two judges' errors (items x judges, items x people; NaN where missing).

    It rests on the items that all judges scored and two people or more rated; with `exact` people's mean is taken for
    the truth, and one rating is enough. `clusters` has each item's cluster, if intervals speak of other clusters.

    A judge's error is its score less the people's mean. That mean errs too, in an error that all judges share and that
    would count as their correlation: its variance, estimated from how people differ within an item, is subtracted.
    """
    if judges.shape[1] < 2:
        return Unknown("there is only one judge")
    counts = (~np.isnan(people)).sum(axis=1)
    usable = (counts >= (1 if exact else 2)) & ~np.isnan(judges).any(axis=1)
    if usable.sum() < 3:
        rated = "rated" if exact else "rated by two people or more"
        return Unknown(f"only {usable.sum()} items were scored by all judges and {rated}")
    counts, people = counts[usable], people[usable]
    means = np.nanmean(people, axis=1)
    noise = np.zeros(len(means)) if exact else np.nanvar(people, axis=1, ddof=1) / counts
    errors = judges[usable] - means[:, None]
    value, pieces = error_correlation_sums(errors, noise).value, Pieces.of(np.flatnonzero(usable), clusters)
    statistic = rows(error_correlation_sums, errors, noise, pieces=pieces)
    return interval(value, pieces, statistic, rng, shape="correlation")


def effective_judges(
    judges: Floats, people: Floats, rng: np.random.Generator, *, exact: bool = False, clusters: Ints | None = None
) -> Result:
    """Return the number of independent judges whose mean errs as much as this panel's; see `error_correlation`.

    k judges whose errors correlate by r on average have, in their mean, the error of k / (1 + (k - 1) r) independent
    ones (the design effect of L. Kish, "Survey Sampling" (1965), section 5.4, for judges in place of a cluster's
    members).
    """
    shared = error_correlation(judges, people, rng, exact=exact, clusters=clusters)
    if isinstance(shared, Unknown):
        return shared
    k = judges.shape[1]
    if 1 + (k - 1) * shared.low < LEAST:
        return Unknown("the judges' errors may cancel each other")
    worth = [k / (1 + (k - 1) * r) for r in (shared.value, shared.high, shared.low)]
    return Estimate(worth[0], worth[1], worth[2], shared.items, shared.method)


def error_correlation_sums(errors: Floats, noise: Floats) -> Sums:
    judges = errors.shape[1]
    errors = errors - errors.mean(axis=0)
    products = np.einsum("ij,ik->ijk", errors, errors).reshape(len(errors), -1)

    def evaluate(sums: Floats) -> Floats:
        n = sums[:, :1]
        mean, shared = sums[:, 2 : 2 + judges] / n, (sums[:, 1:2] / n)[:, :, None]
        covariance = (
            (sums[:, 2 + judges :] / n).reshape(-1, judges, judges) - mean[:, :, None] * mean[:, None, :] - shared
        )
        spread = np.sqrt(np.einsum("bjj->bj", covariance).clip(0))
        with np.errstate(divide="ignore", invalid="ignore"):
            correlation = covariance / (spread[:, :, None] * spread[:, None, :])
            return np.asarray((correlation.sum(axis=(1, 2)) - judges) / (judges * (judges - 1)))

    # A ratio whose denominator may come near 0: its own standard error in a resample says little.
    return Sums(np.column_stack([np.ones(len(errors)), noise, errors, products]), evaluate, symmetric=True)


@dataclass(frozen=True, slots=True)
class Cascade:
    """What a panel says of each item after each stage, each with one judge more (items x stages): how uncertain it is
    (infinite where that cannot be said), and its score."""

    uncertainty: Floats
    scores: Floats

    def decide(self, bound: float) -> tuple[Ints, Floats]:
        """Return the stage that decides each item, the first whose uncertainty is within the bound, or -1 where none
        does, and the score there (NaN where nobody decides)."""
        within = self.uncertainty <= bound + CLOSE
        stage = np.where(within.any(axis=1), within.argmax(axis=1), -1)
        return stage, np.where(stage >= 0, self.scores[np.arange(len(stage)), stage], np.nan)


@dataclass(frozen=True, slots=True)
class LearnedTrust:
    """The bound of uncertainty up to which a panel decides, and what it did on the rated items: how many it decided, on
    how many of them people agree, and the share of all items that it decides (`coverage`)."""

    bound: float
    decided: int
    agreeing: int
    coverage: float


CLOSE = 1e-9
FEWEST_DECIDED = 20


def learn_trust(
    cascade: Cascade, people: Floats, bounds: Sequence[float], *, within: float, agree: float, confidence: float
) -> LearnedTrust | Unknown:
    """Return the largest of these bounds (ascending, fixed beforehand) for which rated items show, with this
    confidence, that people agree with the panel on a share of `agree` of the items that it decides: their mean lies
    within so many points of its score.

    By fixed-sequence testing with exact binomial p-values, as J. Jung, F. Brahman and Y. Choi do in "Trust or escalate:
    LLM judges with provable guarantees for human agreement" (ICLR 2025, arXiv 2407.18370). One bound holds for all
    stages, so one sequence is tested: from the first bound that decides `FEWEST_DECIDED` rated items on, until one is
    not rejected.
    """
    rated, learned = ~np.isnan(people), None
    for bound in bounds:
        stage, scores = cascade.decide(bound)
        decided = rated & (stage >= 0)
        count = int(decided.sum())
        if count < FEWEST_DECIDED:
            continue
        agreeing = int((np.abs(scores[decided] - people[decided]) <= within + CLOSE).sum())
        if special.bdtrc(agreeing - 1, count, agree) > 1 - confidence:
            break
        learned = LearnedTrust(float(bound), count, agreeing, float((stage >= 0).mean()))
    if learned is None:
        return Unknown(
            f"{int(rated.sum())} rated items do not show for any bound that people agree on {agree:.0%} of the items "
            "that the judges decide"
        )
    return learned
