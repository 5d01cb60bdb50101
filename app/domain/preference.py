"""Preferences between the two texts of a pair: above 0 for A, below 0 for B, 0 for a tie.

A judge that is shown the texts swapped calls the text that it read first A. What is stored always refers to the pair's
own A and B.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean


def unswapped_score(score: int, *, swapped: bool | None) -> int:
    """Return a judge's preference in terms of the pair's own A and B."""
    return -score if swapped else score


def combined_score(scores: Mapping[int, float], *, both_orders: bool) -> float:
    """Return one judge's score of an item from its scores by round, of which there must be at least one.

    With `both_orders`, each even round and the odd one after it are the same question in both orders. If the preferred
    text changes with the order, the order decided and not the texts: that is a tie. A tie in one order leaves the
    other's preference, as does an order without a score; otherwise it is the mean of both. Several replicates are
    averaged.
    """
    if not both_orders:
        return fmean(scores.values())
    means = []
    for replicate in sorted({round // 2 for round in scores}):
        pair = (scores.get(round, 0) for round in (2 * replicate, 2 * replicate + 1))
        preferred = [score for score in pair if score]
        turned = len(preferred) == 2 and preferred[0] * preferred[1] < 0
        means.append(fmean(preferred) if preferred and not turned else 0.0)
    return fmean(means)
