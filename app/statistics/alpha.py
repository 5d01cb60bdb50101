"""Krippendorff's alpha: agreement of any number of raters with any number of missing ratings.

The values come from the package krippendorff. The sums serve the resamples; they follow K. Krippendorff, "Computing
Krippendorff's Alpha-Reliability" (2011): coincidences within an item, expected ones from all values.
"""

from __future__ import annotations

from typing import Literal

import krippendorff
import numpy as np

from dicast.app.statistics.arrays import Floats
from dicast.app.statistics.estimates import Result, Unknown
from dicast.app.statistics.kappa import codes
from dicast.app.statistics.resampling import Sums, interval, rows

Level = Literal["nominal", "ordinal", "interval"]


def alpha(matrix: Floats, levels: Floats, level: Level, rng: np.random.Generator) -> Result:
    """Return alpha over items (rows) x raters (columns); NaN is a missing rating. Items with a single rating do not
    count.

    `levels` are the scale's values, ascending: ordinal alpha counts the ratings between two of them, nominal alpha
    whether they differ. Interval alpha needs no levels and takes any numbers.
    """
    pairable = matrix[(~np.isnan(matrix)).sum(axis=1) >= 2]
    if len(pairable) < 3:
        return Unknown(f"only {len(pairable)} items have ratings by two or more")
    scores = pairable[~np.isnan(pairable)]
    if np.ptp(scores) == 0:
        return Unknown("everybody gave every item the same score")
    if level == "interval":
        value = krippendorff.alpha(reliability_data=pairable.T, level_of_measurement="interval")
        return interval(float(value), len(pairable), rows(interval_alpha_sums, pairable), rng, shape="correlation")
    if codes(scores, levels) is None:
        return Unknown("some scores are none of the scale's levels, as a mean is")
    counts = np.stack([(pairable == score).sum(axis=1) for score in levels], axis=1)
    used = counts.any(axis=0)
    value = krippendorff.alpha(
        value_counts=counts[:, used], value_domain=levels[used].tolist(), level_of_measurement=level
    )
    statistic = rows(lambda chosen: alpha_sums(chosen, level), counts[:, used].astype(np.float64))
    return interval(float(value), len(counts), statistic, rng, shape="correlation")


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
    """Return nominal or ordinal alpha as sums, from each item's counts of each level (items x levels)."""
    levels = counts.shape[1]
    within = counts[:, :, None] * (counts[:, None, :] - np.eye(levels))
    upper = np.triu_indices(levels)  # coincidences are symmetric, and their rows sum to the margins
    coincidences = within[:, *upper] / (counts.sum(axis=1) - 1)[:, None]

    def evaluate(sums: Floats) -> Floats:
        observed = np.zeros((len(sums), levels, levels))
        observed[:, *upper] = sums
        observed += np.triu(observed, 1).transpose(0, 2, 1)
        margins = observed.sum(axis=2)
        apart = _distances(margins, level)
        by_chance = (margins[:, :, None] * apart * margins[:, None, :]).sum(axis=(1, 2)) / (margins.sum(axis=1) - 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(1 - (observed * apart).sum(axis=(1, 2)) / by_chance)

    return Sums(coincidences, evaluate)


def _distances(margins: Floats, level: Level) -> Floats:
    """Return the squared distances between levels in each resample (resamples x levels x levels)."""
    resamples, levels = margins.shape
    if level == "nominal":
        return np.broadcast_to(1 - np.eye(levels), (resamples, levels, levels))
    # Between two levels lie the ratings up to the middle of each: the sum from c to k less half of both ends.
    middle = np.cumsum(margins, axis=1) - margins / 2
    return np.asarray((middle[:, :, None] - middle[:, None, :]) ** 2)
