"""All probes for biases in one dimension, with p corrected by Holm for their number.

This module has the probes that use items as they were judged. Those that try variants of items are in trying.py, the
effect of the order of a pair's texts is in placing.py, and preference for a judge's own family in kinship.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dicast.app.assessment.kinship import self_preference
from dicast.app.assessment.placing import position_probes
from dicast.app.assessment.probe_found import ProbeResult
from dicast.app.assessment.scores import DimensionScores, JobScores
from dicast.app.assessment.trying import variant_probes
from dicast.app.assessment.voices import SPARED
from dicast.app.domain.judge_statistics import ProbeStatistics
from dicast.app.domain.probes import MeasuredProbeName
from dicast.app.statistics.arrays import Floats
from dicast.app.statistics.estimates import Estimate, Result, Unknown
from dicast.app.statistics.groups import holm
from dicast.app.statistics.regression import slope

FEWEST = 20
FEWEST_OF_A_KIND = 5
SMALLEST = 1e-9


def probe_statistics(
    job: JobScores,
    dimension: DimensionScores,
    raters: Mapping[str, Floats],
    varied: Mapping[str, Floats],
    orders: Sequence[Mapping[str, Floats]],
) -> list[ProbeStatistics]:
    """Return all probes of all raters. `raters` have one score an item, `varied` one a variant, and `orders` the
    scores of pairs in each of two orders."""
    results = [
        *_observed_probes(job, dimension, raters),
        *self_preference(job, dimension),
        *variant_probes(job, dimension, raters, varied),
    ]
    if orders:
        results += position_probes(job, dimension, *orders)
    names = [name for name, everywhere in zip(job.judges, dimension.asked_everywhere, strict=True) if not everywhere]
    results = [result.unknown(SPARED) if result.voice in names else result for result in results]
    corrected = iter(holm(np.array([result.p for result in results if result.p is not None])).tolist())
    return [result.statistics(None if result.p is None else next(corrected)) for result in results]


def _observed_probes(job: JobScores, dimension: DimensionScores, raters: Mapping[str, Floats]) -> Iterator[ProbeResult]:
    """Regress the rater's score less people's mean, over the rated items, on what the probe measured.

    People's noise is in the difference alone, so it widens the interval and does not bias the slope, as it would if
    people's score were a fixed covariate.
    """
    people = dimension.people.means(job.items)
    for probe, measured in job.probes.items():
        x = np.log2(measured.clip(1)) if probe == "verbosity" else measured
        for name, scores in raters.items():
            yield ProbeResult(probe, name, *_slope(probe, x, scores - people))


def _slope(probe: MeasuredProbeName, x: Floats, apart: Floats) -> tuple[Result, float | None]:
    """Return the slope with its interval (heteroscedasticity-consistent errors HC3, Student's t), and its p."""
    usable = ~(np.isnan(x) | np.isnan(apart))
    x, apart = x[usable], apart[usable]
    if len(x) < FEWEST:
        return Unknown(f"it needs {FEWEST} items that people rated or more, and there are {len(x)}"), None
    if probe == "formatting" and min((x == 0).sum(), (x == 1).sum()) < FEWEST_OF_A_KIND:
        return Unknown(f"fewer than {FEWEST_OF_A_KIND} of the rated items are marked up, or are not"), None
    if np.ptp(x) < SMALLEST:
        return Unknown("all rated items are equally long"), None
    if np.ptp(apart) < SMALLEST:
        return Unknown("it is off by the same on all rated items"), None
    fit = slope(x, apart)
    if not fit.high - fit.low > SMALLEST:
        return Unknown("the rated items leave nothing to draw an interval from"), None
    return Estimate(fit.value, fit.low, fit.high, len(x), "least squares, HC3"), fit.p
