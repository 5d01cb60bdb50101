"""Formulas at their edges: the fewest of what they rest on, ties, the ends of scales, and what rounding leaves."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dicast.app.analysis.agreement import fleiss
from dicast.app.analysis.combining import combine_majority, combine_trimmed
from dicast.app.analysis.estimates import Estimate, Unknown
from dicast.app.analysis.groups import compare_groups
from dicast.app.analysis.means import mean
from dicast.app.analysis.powered import powered_mean
from dicast.app.analysis.ratings import RatingTable
from lab.statistics.panel_replay import mean_settled


@pytest.mark.parametrize("scores, middle", [([1, 2, 3, 4, 5], 3), ([5, 4, 3, 2], 3), ([7, 1], 1), ([2, 2, 9, 9, 5], 2)])
def test_of_tied_scores_a_majority_is_the_middle_one(scores: list[float], middle: float) -> None:
    assert combine_majority(np.array([scores], dtype=float)).tolist() == [middle]


def test_few_scores_are_not_trimmed() -> None:
    scores = np.array([[4.0, np.nan, np.nan], [np.nan, 2.0, 5.0], [1.0, 9.0, 2.0], [np.nan] * 3])
    np.testing.assert_array_equal(combine_trimmed(scores), [4.0, 3.5, 2.0, np.nan])


def test_an_item_that_was_sure_to_be_rated_has_probability_one_and_no_more() -> None:
    rng = np.random.default_rng(0)
    judges, people = rng.normal(size=(2, 60))
    people[40:] = np.nan
    chances = np.full(60, 40 / 60)
    for sure, is_known in ((1.0, True), (1.001, False), (0.0, False), (2.0, False)):
        chances[0] = sure
        found = powered_mean(judges, people, probabilities=chances)
        assert isinstance(found.both, Estimate) is is_known, sure


def test_fleiss_kappa_takes_three_items_and_says_so_of_two() -> None:
    levels, rng = np.array([1.0, 2.0, 3.0]), np.random.default_rng(0)
    scores = np.array([[1.0, 1.0, 2.0], [3.0, 3.0, 3.0], [2.0, 1.0, 2.0]])
    three, two = fleiss(scores, levels, rng), fleiss(scores[:2], levels, rng)
    assert isinstance(two, Unknown) and "only 2 items" in two.reason
    assert "only 3 items were scored by all" not in getattr(three, "reason", "")


def test_a_mean_that_is_the_threshold_but_for_rounding_has_reached_it() -> None:
    assert 0.7 + 0.1 < 0.8
    assert mean_settled([0.7, 0.1], 0, threshold=0.4, low=0.0, high=1.0)
    assert not mean_settled([0.7, 0.0], 1, threshold=0.4, low=0.0, high=1.0)


def test_groups_too_small_for_an_interval_have_none_and_the_smallest_ones_have_welchs() -> None:
    rng = np.random.default_rng(4)
    for items, is_known in ((4, False), (5, True)):
        a, b = rng.normal(size=9), rng.normal(size=items)
        seen = compare_groups(np.r_[a, b], np.repeat(["a", "b"], [9, items]), np.arange(9 + items), rng)
        found = seen.differences[0].difference
        assert isinstance(found, Estimate) is is_known
        if is_known:
            welch = stats.ttest_ind(a, b, equal_var=False).confidence_interval()
            assert (found.low, found.high) == pytest.approx(tuple(welch))


def test_clusters_are_what_a_mean_rests_on() -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(size=12)
    once = mean(values)
    thrice = mean(np.repeat(values, 3), clusters=np.repeat(np.arange(100, 112), 3))
    assert isinstance(once, Estimate) and isinstance(thrice, Estimate)
    assert (thrice.value, thrice.low, thrice.high, thrice.items) == pytest.approx(
        (once.value, once.low, once.high, once.items)
    )


def test_a_table_of_nobody_has_items_and_no_column() -> None:
    table = RatingTable(("i1", "i2", "i3"), ("ada",), np.array([[1.0], [2.0], [3.0]]))
    assert table.of([]).shape == (3, 0)
    np.testing.assert_array_equal(table.of(["ben", "ada"]), [[np.nan, 1], [np.nan, 2], [np.nan, 3]])
    assert (table.missing, RatingTable((), (), np.empty((0, 0))).missing) == (0.0, 0.0)
