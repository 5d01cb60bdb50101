"""Do judges favour texts of their own family of models?

Where people rated enough of both, a judge's score less people's mean is compared between texts of its family and all
others. Elsewhere the judges are held against each other: each score is what the item is worth, plus what its judge
gives on average, plus what that judge adds for its own family, by least squares with the items' worth taken out and
errors clustered by item. Two judges of two families on texts of these two alone cannot be told apart in that way.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dicast.app.assessment.combined import is_not_chief
from dicast.app.assessment.probe_found import ProbeResult
from dicast.app.assessment.scores import DimensionScores, JobScores
from dicast.app.statistics import student
from dicast.app.statistics.arrays import Floats, Ints
from dicast.app.statistics.estimates import CONFIDENCE, Estimate, Result, Unknown
from dicast.app.statistics.regression import slope

FEWEST_OF_EACH = 10
SMALLEST = 1e-9
WITH_PEOPLE = "least squares, HC3"
WITH_JUDGES = "least squares within items, clustered by item"


def self_preference(job: JobScores, dimension: DimensionScores) -> Iterator[ProbeResult]:
    """Yield the probe of each judge, if the job has this probe."""
    if job.kinship is None:
        return
    authors, families = job.kinship.authors, job.kinship.judges
    is_own = np.stack([_is_own_family(authors.codes, authors.names, family) for family in families], axis=1)
    apart = dimension.judges - dimension.people.means(job.items)[:, None]
    alone = dimension.asked_everywhere & is_not_chief(job.judges, dimension)
    among = _among_judges(np.where(alone, dimension.judges, np.nan), is_own)
    for at, name in enumerate(job.judges):
        if families[at] is None:
            reason = f"the family of {name}'s model is not known: name it under `families`"
            yield ProbeResult("self_preference", name, Unknown(reason), None)
            continue
        if _shortage(apart[:, at], is_own[:, at]) is None:
            yield ProbeResult("self_preference", name, *_with_people(apart[:, at], is_own[:, at]))
            continue
        short = _shortage(dimension.judges[:, at], is_own[:, at])
        nobody = Unknown(short or "there is no other judge to hold it against"), None
        yield ProbeResult("self_preference", name, *(nobody if short else among.get(at, nobody)), against="judges")


def _is_own_family(codes: Ints, names: tuple[str, ...], family: str | None) -> Floats:
    """Return 1 for a text of the family, 0 for a text of another one, and NaN where the author's family is unknown."""
    code = names.index(family) if family in names else len(names)
    return np.where(codes < 0, np.nan, (codes == code).astype(np.float64))


def _shortage(scores: Floats, is_own: Floats) -> str | None:
    """Return why there are too few texts to compare, None if there are enough."""
    usable = ~(np.isnan(scores) | np.isnan(is_own))
    of_own, of_others = int((is_own[usable] == 1).sum()), int((is_own[usable] == 0).sum())
    if min(of_own, of_others) >= FEWEST_OF_EACH:
        return None
    requirement = f"it needs {FEWEST_OF_EACH} texts of its own family and as many of others"
    return f"{requirement}, and there are {of_own} and {of_others}"


def _with_people(apart: Floats, is_own: Floats) -> tuple[Result, float | None]:
    usable = ~(np.isnan(apart) | np.isnan(is_own))
    y, x = apart[usable], is_own[usable]
    if np.ptp(y) < SMALLEST:
        return Unknown("it is off from people by the same on all texts"), None
    fit = slope(x, y)
    if not fit.high - fit.low > SMALLEST:
        return Unknown("the rated texts leave nothing to draw an interval from"), None
    return Estimate(fit.value, fit.low, fit.high, len(x), WITH_PEOPLE), fit.p


def _among_judges(scores: Floats, is_own: Floats) -> dict[int, tuple[Result, float | None]]:
    """Return the effect and its p by the judge's index; scores and `is_own` are items x judges."""
    judges = scores.shape[1]
    usable = ~(np.isnan(scores) | np.isnan(is_own))
    usable &= (usable.sum(axis=1) >= 2)[:, None]
    item, judge = np.nonzero(usable)
    if judges < 2 or len(item) == 0:
        return {}
    levels = np.eye(judges)[judge][:, 1:]
    adds = np.eye(judges)[judge] * is_own[item, judge][:, None]
    design = _within(np.column_stack([adds, levels]), item)
    y = _within(scores[item, judge][:, None], item)[:, 0]
    inverse = np.linalg.pinv(design, rcond=1e-10)
    identified = np.abs(np.diag(inverse @ design) - 1) < 1e-6
    clusters = np.unique(item, return_inverse=True)[1]
    count = int(clusters.max()) + 1
    if count <= design.shape[1] + 2:
        return {}
    coefficients = inverse @ y
    parts = inverse.T * (y - design @ coefficients)[:, None]
    sums = np.stack([np.bincount(clusters, weights=column, minlength=count) for column in parts.T], axis=1)
    errors = np.sqrt((sums**2).sum(axis=0) * count / (count - design.shape[1] - 1))
    return {at: _estimate(coefficients[at], errors[at], count, bool(identified[at])) for at in range(judges)}


def _within(values: Floats, item: Ints) -> Floats:
    """Subtract each item's mean, which removes what the item is worth."""
    codes = np.unique(item, return_inverse=True)[1]
    count = np.bincount(codes)
    means = np.stack([np.bincount(codes, weights=column) / count for column in values.T], axis=1)
    return np.asarray(values - means[codes])


def _estimate(value: float, error: float, items: int, identified: bool) -> tuple[Result, float | None]:
    if not identified:
        return Unknown("no other judge of another family has judged texts of a third one beside it"), None
    if error <= SMALLEST:
        return Unknown("the judges differ by the same on all texts"), None
    reach = student.quantile((1 + CONFIDENCE) / 2, items - 1) * error
    estimate = Estimate(float(value), float(value - reach), float(value + reach), items, WITH_JUDGES)
    return estimate, student.two_sided_p(value / error, items - 1)
