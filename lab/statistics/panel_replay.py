"""Decides whether the next judge can still change the outcome; if not, it need not be called.

For votes, labels and thresholds the answer is exact: the outcome is the full panel's, whatever the skipped judges would
have said. For means it is a trade-off, based on how far the first judges lie apart or on how uncertain they are: a
small disagreement says little about the error of their mean. `replay` computes what a rule would have called, `trade`
what that would have cost and gained, both from a full panel's opinions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dicast.app.analysis.combining import combine_mean
from dicast.app.analysis.estimates import Estimate, Floats, Ints, Result, Unknown
from dicast.app.analysis.means import mean

NEARLY = 1e-9
"""The tolerance by which an uncertainty may miss its bound, because floating-point sums are inexact."""
Settled = Callable[[Sequence[float], int], bool]
"""A function from the scores so far and the number of remaining judges to whether the outcome is settled."""


def majority_settled(scores: Sequence[float], remaining: int) -> bool:
    """Return whether the commonest score stays the only commonest one, whatever the remaining judges say."""
    if not scores:
        return remaining == 0
    counts = sorted((np.unique(np.asarray(scores), return_counts=True)[1]).tolist(), reverse=True)
    second = counts[1] if len(counts) > 1 else 0
    return remaining == 0 or counts[0] > second + remaining


def votes_settled(scores: Sequence[float], remaining: int, *, passing: float, needed: int) -> bool:
    """Return whether it is certain that `needed` judges give `passing` or more, or that they do not."""
    passed = sum(score >= passing for score in scores)
    return passed >= needed or passed + remaining < needed


def mean_settled(scores: Sequence[float], remaining: int, *, threshold: float, low: float, high: float) -> bool:
    """Return whether the full panel's mean is certain to reach `threshold`, or not to, on a scale from `low` to
    `high`."""
    panel, total = len(scores) + remaining, sum(scores)
    margin = 1e-9 * (high - low) * panel
    return (
        total + remaining * low >= threshold * panel - margin or total + remaining * high < threshold * panel - margin
    )


def median_settled(scores: Sequence[float], remaining: int, *, threshold: float, low: float, high: float) -> bool:
    """Return whether the full panel's median is certain to reach `threshold`, or not to."""
    at_worst, at_best = ([*scores, *[end] * remaining] for end in (low, high))
    return float(np.median(at_worst)) >= threshold or float(np.median(at_best)) < threshold


def worst_settled(scores: Sequence[float], remaining: int, *, low: float) -> bool:
    """Return whether the lowest score is certain: some judge gave the lowest there is."""
    return remaining == 0 or (bool(scores) and min(scores) <= low)


def agrees(scores: Sequence[float], remaining: int, *, within: float, first: int = 2) -> bool:
    """Return whether the first judges' scores lie at most `within` apart, which is for means. It is not lossless."""
    return remaining == 0 or (len(scores) >= first and max(scores) - min(scores) <= within)


def standard_errors(answers: Floats) -> Floats:
    """Return the standard error of each judge's score of each item (items x judges), from the spread of its answers
    (items x judges x replicates, NaN where missing). It is infinite for fewer than two answers, which show no spread.
    """
    counts = (~np.isnan(answers)).sum(axis=-1)
    apart = answers - (np.nansum(answers, axis=-1) / counts.clip(1))[..., None]
    variance = np.nansum(apart**2, axis=-1) / (counts - 1).clip(1)
    return np.where(counts > 1, np.sqrt(variance / counts.clip(1)), np.inf)


def certain(
    uncertainties: Sequence[float], remaining: int, *, within: float, weights: Sequence[float] | None = None
) -> bool:
    """Return whether the standard error of the mean so far, from each judge's own uncertainty, is at most `within`,
    which is for means.

    `uncertainties` are the standard errors of the called judges' scores, as from replicates (`standard_errors`); for a
    weighted mean `weights` are theirs. It is not lossless: it misses errors that the judges have in common.
    """
    if remaining == 0:
        return True
    factors = np.ones(len(uncertainties)) if weights is None else np.asarray(weights, dtype=np.float64)
    if not factors.sum():
        return False
    with np.errstate(invalid="ignore"):  # a weight of 0, of a judge who has no score
        of_mean = np.linalg.norm(factors * np.asarray(uncertainties)) / factors.sum()
    return bool(of_mean <= within + NEARLY)


@dataclass(frozen=True, slots=True)
class Replay:
    """What an escalating panel would have called, and the scores it would have had, on a full panel's opinions.

    `calls` is how many judges each item would have needed, `shorter` the scores of those alone (NaN for the others).
    """

    calls: Ints
    shorter: Floats

    @property
    def share(self) -> float:
        """The calls as a share of the full panel's."""
        return float(self.calls.sum() / self.shorter.size) if self.shorter.size else 0.0


def replay(scores: Floats, settled: Settled) -> Replay:
    """Replay the escalating panel on items x judges, called in the order of the columns. NaN is a call without a
    score."""
    judges = scores.shape[1]

    def enough(item: int, count: int) -> bool:
        so_far = [score for score in scores[item, :count].tolist() if not np.isnan(score)]
        return settled(so_far, judges - count)

    return _replayed(scores, enough)


def replay_uncertain(answers: Floats, *, within: float, weights: Sequence[float] | None = None) -> Replay:
    """Replay the panel that calls the next judge unless it is `certain`, on items x judges x replicates."""
    items, judges, replicates = answers.shape
    errors = standard_errors(answers).tolist()

    def enough(item: int, count: int) -> bool:
        return certain(errors[item][:count], judges - count, within=within, weights=weights and weights[:count])

    return _replayed(combine_mean(answers.reshape(items * judges, replicates)).reshape(items, judges), enough)


def _replayed(scores: Floats, enough: Callable[[int, int], bool]) -> Replay:
    """Replay a panel; `enough` tells for an item whether the first so many judges suffice."""
    items, judges = scores.shape
    calls = np.full(items, judges, dtype=np.int64)
    for item in range(items):
        calls[item] = next((count for count in range(1, judges) if enough(item, count)), judges)
    return Replay(calls, np.where(np.arange(judges) < calls[:, None], scores, np.nan))


@dataclass(frozen=True, slots=True)
class Trade:
    """The savings and losses of an escalating panel, on the items that people rated.

    `later_calls` is the share of the later judges' calls that were made, `gain` the share that was kept of the
    reduction in squared error by the later judges (Unknown if that reduction cannot be told from 0). `worse` is by how
    much the squared error exceeds the full panel's.
    """

    later_calls: float
    gain: float | Unknown
    worse: Result


def trade(scores: Floats, people: Floats, replayed: Replay, *, first: int = 2) -> Trade:
    """Return the trade of a replayed panel whose score is its judges' mean, compared with the `first` judges alone and
    the full panel."""
    usable = ~(np.isnan(people) | np.isnan(scores).any(axis=1))
    scores, people = scores[usable], people[usable]
    short = combine_mean(replayed.shorter[usable])
    few, full, escalated = (
        (predicted - people) ** 2 for predicted in (scores[:, :first].mean(axis=1), scores.mean(axis=1), short)
    )
    later = scores.shape[1] - first
    calls = float((replayed.calls[usable] - first).clip(0).mean() / later) if len(people) and later > 0 else 0.0
    lowered = mean(few - full)
    gain: float | Unknown = Unknown("the later judges lower the error by nothing that can be told from 0")
    if isinstance(lowered, Estimate) and lowered.low > 0:
        gain = float((few - escalated).mean() / lowered.value)
    return Trade(calls, gain, mean(escalated - full))
