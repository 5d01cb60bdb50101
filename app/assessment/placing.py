"""Measures whether the order in which the texts of a pair are shown decides, on pairs that were judged in both
orders.

The effect of being shown first, in points of the scale, is half of the difference between the preference for A where A
comes first and where B does. Each pair is compared with itself, so it does not matter which of its texts is better.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from dicast.app.assessment.figures import figure
from dicast.app.assessment.probe_found import ChangedShares, ProbeResult
from dicast.app.assessment.scores import DimensionScores, JobScores
from dicast.app.assessment.trying import FEWEST_PAIRS, ONE_ROUND, figure_of_share, paired
from dicast.app.domain.figure import Figure
from dicast.app.statistics.arrays import Floats
from dicast.app.statistics.combining import combine_mean
from dicast.app.statistics.estimates import Estimate, Result

NO_ROUNDS = "the panel is not asked twice about one order"


def position_probes(
    job: JobScores, dimension: DimensionScores, shown_first: Mapping[str, Floats], shown_second: Mapping[str, Floats]
) -> Iterator[ProbeResult]:
    """Yield the probe of each rater, from its scores of the pairs with A first and with B first (both in favour of
    A)."""
    if dimension.orders is None:
        return
    for name, first in shown_first.items():
        second = shown_second[name]
        effect, p = _effect((first - second) / 2)
        rounds = (
            dimension.orders[:, job.judges.index(name)]
            if name in job.judges
            else np.stack([first, second], -1)[:, None]
        )
        moved = _turned(rounds, judge=name in job.judges)
        yield ProbeResult("position", name, effect, p, "", "itself", moved, first=_first(rounds))


def _effect(differences: Floats) -> tuple[Result, float | None]:
    """Return the effect and its p. If all pairs are alike, which leaves no interval, p is that of the sign test."""
    effect, p = paired(differences, np.arange(len(differences)))
    present = differences[~np.isnan(differences)]
    if p is None and not isinstance(effect, Estimate) and len(present) >= FEWEST_PAIRS and present[0] != 0:
        p = float(2 * 0.5 ** len(present))
    return effect, p


def _first(rounds: Floats) -> Figure:
    """Return how often the text that is shown first is preferred (pairs x replicates x 2); ties count half."""
    preferred = (np.sign(rounds[..., 0]) - np.sign(rounds[..., 1])) / 4 + 0.5
    return figure_of_share(combine_mean(preferred), np.arange(len(rounds)))


def _turned(rounds: Floats, *, judge: bool) -> ChangedShares:
    """Return the share of pairs (... x replicates x 2) whose preference is reversed in the other order, the share
    that is reversed in another round of the same order, and the difference."""
    pairs = np.arange(len(rounds))
    turned = _first_place_share(rounds[..., 0] * rounds[..., 1])
    if not judge or rounds.shape[1] < 2:
        unknown = Figure.unknown(ONE_ROUND if judge else NO_ROUNDS)
        return ChangedShares(figure_of_share(turned, pairs), unknown, unknown)
    first, second = np.triu_indices(rounds.shape[1], 1)
    by_itself = _first_place_share((rounds[:, first] * rounds[:, second]).reshape(len(rounds), -1))
    beyond, _ = paired(turned - by_itself, pairs)
    return ChangedShares(figure_of_share(turned, pairs), figure_of_share(by_itself, pairs), figure(beyond))


def _first_place_share(products: Floats) -> Floats:
    """Return for each row the share that is below 0, NaN for a row without any values."""
    present = (~np.isnan(products)).sum(axis=1)
    return np.where(present > 0, (products < 0).sum(axis=1) / np.maximum(present, 1), np.nan)
