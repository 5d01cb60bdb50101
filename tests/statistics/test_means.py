"""Means, their standard errors and intervals, against values worked out by hand or by SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dicast.app.statistics.means import Deviation, deviation, mean


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
