"""How many independent judges a panel is worth.

k judges whose errors correlate by r on average have, in their mean, the error of k / (1 + (k - 1) r) independent ones
(the design effect of L. Kish, "Survey Sampling" (1965), section 5.4, for judges in place of a cluster's members).

A judge's error is its score less the people's mean. That mean errs too, in an error that all judges share and that
would count as their correlation: its variance, estimated from how people differ within an item, is subtracted.
"""

from __future__ import annotations

import numpy as np

from dicast.app.statistics.arrays import Floats
from dicast.app.statistics.estimates import Estimate, Result, Unknown
from dicast.app.statistics.resampling import Sums, interval, rows

LEAST = 1e-3


def error_correlation(judges: Floats, people: Floats, rng: np.random.Generator, *, exact: bool = False) -> Result:
    """Return the mean correlation of two judges' errors (items x judges, items x people; NaN where missing).

    It rests on the items that all judges scored and two people or more rated; with `exact` people's mean is taken for
    the truth, and one rating is enough.
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
    value = error_correlation_sums(errors, noise).value
    return interval(value, len(errors), rows(error_correlation_sums, errors, noise), rng, shape="correlation")


def effective_judges(judges: Floats, people: Floats, rng: np.random.Generator, *, exact: bool = False) -> Result:
    """Return the number of independent judges whose mean errs as much as this panel's; see `error_correlation`."""
    shared = error_correlation(judges, people, rng, exact=exact)
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
