"""Are the items that people rated a random sample of all, as far as the judges' scores can tell?

Whatever is said of people's scores of all items rests on it. The judges scored rated and unrated items alike, so what
they say of the two must not differ by more than chance draws make it: the mean, how far scores lie from the mean, and
how far judges lie apart on an item (people may have picked the best, the extreme, or the disputed ones), and how many
items of each group are among them. A draw of n of N items without replacement has a mean whose variance is S^2 / n *
(1 - n / N) (W. G. Cochran, "Sampling Techniques" (1977), theorem 2.2); groups are compared by Pearson's chi-squared
test. Where items were drawn with known probabilities, or belong to clusters, Student's t of the weighted, clustered
mean takes its place.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
from scipy import special

from dicast.app.analysis import estimates as student
from dicast.app.analysis.estimates import CONFIDENCE, Bools, Estimate, Floats, Ints
from dicast.app.analysis.means import SMALLEST, deviation
from dicast.app.analysis.scores import DimensionScores, JobScores, Labels, figure
from dicast.app.domain.judge_statistics import SampleCheck

FEWEST = 10
"""Fewer rated, or unrated, items are not tested."""
LEAST_EXPECTED = 1.0
MOST_GROUPS = 20


def sample_checks(job: JobScores, dimension: DimensionScores, panel: Floats) -> list[SampleCheck]:
    """Return the tests of one dimension, with p-values that are not corrected for their number; none where people
    rated too few items, or nearly all. `panel` has one score an item."""
    people = dimension.people
    judged = ~np.isnan(panel)
    rated = ~np.isnan(people.means(job.items)) & judged
    if not people.raters or people.flaw is not None or min(rated.sum(), (judged & ~rated).sum()) < FEWEST:
        return []
    chances, clusters = people.chances(job.items), None if job.cluster is None else job.cluster[1]
    checks: list[SampleCheck] = []
    if not dimension.spec.nominal:
        for name, values in _of_items(dimension, panel):
            checks += _difference(name, values, rated, chances, clusters)
    if chances is None and clusters is None:
        for by, labels in job.groups.items():
            checks += _spread_over_groups(by, labels, rated, judged)
    return checks


def _of_items(dimension: DimensionScores, panel: Floats) -> Iterator[tuple[str, Floats]]:
    yield "score", panel
    yield "distance", np.abs(panel - np.nanmean(panel))
    judges = dimension.judges[:, dimension.asked_everywhere]
    if judges.shape[1] > 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # items without any score
            yield "disagreement", np.nanstd(judges, axis=1)


def _difference(
    name: str, values: Floats, rated: Bools, chances: Floats | None, clusters: Ints | None
) -> Iterator[SampleCheck]:
    """Yield the test of the mean of rated against that of unrated items; nothing where all values are alike."""
    present = ~np.isnan(values)
    inside = rated & present
    all_items, n = int(present.sum()), int(inside.sum())
    if min(n, all_items - n) < FEWEST or np.ptp(values[present]) < SMALLEST:
        return
    of_all = float(values[present].mean())
    simple = float(values[present].std(ddof=1)) * np.sqrt((1 - n / all_items) / n)
    weights = None if chances is None else 1 / chances[inside]
    found = deviation(values[inside], None if clusters is None else clusters[inside], weights)
    plain = chances is None and clusters is None
    error = simple if plain else max(simple, found.error)
    degrees = np.inf if plain else max(found.pieces - 1, 1)
    # From rated against all to rated against unrated items.
    stretch = all_items / (all_items - n)
    value, error = stretch * (found.value - of_all), stretch * error
    reach = student.quantile((1 + CONFIDENCE) / 2, degrees) * error
    estimate = Estimate(value, value - reach, value + reach, n, "rated less unrated items")
    yield SampleCheck(name=name, difference=figure(estimate), p=student.two_sided_p(value / error, degrees))


def _spread_over_groups(by: str, labels: Labels, rated: Bools, judged: Bools) -> Iterator[SampleCheck]:
    inside = judged & (labels.codes >= 0)
    codes = np.unique(labels.codes[inside], return_inverse=True)[1]
    counts, of_rated = np.bincount(codes), np.bincount(codes, weights=rated[inside].astype(np.float64))
    total, n = float(counts.sum()), float(of_rated.sum())
    if not 2 <= len(counts) <= MOST_GROUPS or not FEWEST <= n <= total - FEWEST:
        return
    expected = counts * n / total
    if min(expected.min(), (counts - expected).min()) < LEAST_EXPECTED:
        return
    squares = float(((of_rated - expected) ** 2 / (expected * (1 - n / total))).sum())
    yield SampleCheck(name=f"groups by {by}", p=float(special.chdtrc(len(counts) - 1, squares)))
