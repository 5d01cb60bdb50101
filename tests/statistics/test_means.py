"""Means, their standard errors and intervals, against values worked out by hand or by SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dicast.app.analysis.estimates import Estimate
from dicast.app.analysis.means import Deviation, deviation, estimate, mean


def test_errors_of_independent_values_add_up_as_squares() -> None:
    apart = Deviation(7.0, 3.0, 40).minus(Deviation(5.0, 4.0, 30))
    assert (apart.value, apart.error) == (2.0, 5.0)


def test_a_difference_of_two_groups_has_welchs_error() -> None:
    one, two = np.array([3.0, 5.0, 4.0, 8.0, 6.0]), np.array([1.0, 9.0, 2.0, 2.0])
    apart = deviation(one).minus(deviation(two))
    welch = stats.ttest_ind(one, two, equal_var=False)
    assert apart.value / apart.error == pytest.approx(welch.statistic)


def test_a_mean_without_clusters_has_students_interval() -> None:
    scores = np.array([2.0, 3.0, np.nan, 3.0, 5.0, 9.0, 4.0])
    found = mean(scores)
    plain = scores[~np.isnan(scores)]
    low, high = stats.t.interval(0.95, len(plain) - 1, loc=plain.mean(), scale=stats.sem(plain))
    assert (found.value, found.low, found.high) == pytest.approx((plain.mean(), low, high))
    assert (found.items, found.method) == (6, "t")


@pytest.mark.parametrize("value, low, high", [(1.02, 0.9195, 1.0), (-0.02, 0.0, 0.0805), (1.0, 0.8995, 1.0)])
def test_a_value_beyond_the_bounds_has_an_interval_that_ends_there(value: float, low: float, high: float) -> None:
    """As a mean corrected by few ratings may lie."""
    found = estimate(Deviation(value, 0.05, 50), degrees=49, items=50, method="t", bounds=(0.0, 1.0))
    assert isinstance(found, Estimate)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (1.0, 5.0)])
def test_between_bounds_the_interval_is_made_on_the_logit_scale(bounds: tuple[float, float]) -> None:
    floor, size = bounds[0], bounds[1] - bounds[0]
    found = estimate(Deviation(floor + 0.8 * size, 0.05 * size, 50), degrees=49, items=50, method="t", bounds=bounds)
    assert isinstance(found, Estimate)
    reach = stats.t.ppf(0.975, 49) * 0.05 / (0.8 * 0.2)
    ends = 1 / (1 + np.exp(-(np.log(0.8 / 0.2) + np.array([-reach, reach]))))
    assert (found.low, found.high) == pytest.approx(tuple(floor + size * ends))
