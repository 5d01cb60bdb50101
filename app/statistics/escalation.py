"""Can the next judge still change the outcome? If not, he need not be asked.

For votes, labels and thresholds the answer is exact: the outcome is the full panel's, whatever the judges left out
would have said. For means it is a choice: a small disagreement of the first judges says little about the error of their
mean, and `disagrees` lets the caller see what it saves and costs on his own data (`replay`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from app.statistics.arrays import Floats, Ints

Settled = Callable[[Sequence[float], int], bool]
"""From the scores so far and how many judges are left to whether the outcome is settled."""


def majority_settled(scores: Sequence[float], left: int) -> bool:
    """Whether the commonest score stays the only commonest one, whatever the `left` judges say."""
    if not scores:
        return left == 0
    counts = sorted((np.unique(np.asarray(scores), return_counts=True)[1]).tolist(), reverse=True)
    second = counts[1] if len(counts) > 1 else 0
    return left == 0 or counts[0] > second + left


def votes_settled(scores: Sequence[float], left: int, *, passing: float, needed: int) -> bool:
    """Whether it is certain that `needed` judges give `passing` or more, or that they do not."""
    passed = sum(score >= passing for score in scores)
    return passed >= needed or passed + left < needed


def mean_settled(scores: Sequence[float], left: int, *, threshold: float, low: float, high: float) -> bool:
    """Whether the full panel's mean is certain to reach `threshold`, or not to, on a scale from `low` to `high`."""
    panel, total = len(scores) + left, sum(scores)
    margin = 1e-9 * (high - low) * panel
    return total + left * low >= threshold * panel - margin or total + left * high < threshold * panel - margin


def median_settled(scores: Sequence[float], left: int, *, threshold: float, low: float, high: float) -> bool:
    """Whether the full panel's median is certain to reach `threshold`, or not to."""
    at_worst, at_best = ([*scores, *[end] * left] for end in (low, high))
    return float(np.median(at_worst)) >= threshold or float(np.median(at_best)) < threshold


def worst_settled(scores: Sequence[float], left: int, *, low: float) -> bool:
    """Whether the lowest score is certain: somebody gave the lowest there is."""
    return left == 0 or (bool(scores) and min(scores) <= low)


def agrees(scores: Sequence[float], left: int, *, within: float, first: int = 2) -> bool:
    """For means: whether the first judges' scores lie within `within` of each other. Not lossless."""
    return left == 0 or (len(scores) >= first and max(scores) - min(scores) <= within)


@dataclass(frozen=True, slots=True)
class Replay:
    """What an escalating panel would have called, and what it would have missed, on a full panel's opinions.

    `calls` is how many judges each item would have needed, `shorter` the scores of those alone (NaN for the others).
    """

    calls: Ints
    shorter: Floats

    @property
    def share(self) -> float:
        """The calls as a share of the full panel's."""
        return float(self.calls.sum() / self.shorter.size) if self.shorter.size else 0.0


def replay(scores: Floats, settled: Settled) -> Replay:
    """The escalating panel on items x judges, asked in the order of the columns. NaN is asked for and gives nothing."""
    items, judges = scores.shape
    calls = np.full(items, judges, dtype=np.int64)
    for item, row in enumerate(scores):
        for asked in range(1, judges):
            if settled([score for score in row[:asked].tolist() if not np.isnan(score)], judges - asked):
                calls[item] = asked
                break
    return Replay(calls, np.where(np.arange(judges) < calls[:, None], scores, np.nan))
