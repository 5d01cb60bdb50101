"""Judges with people beside people with people, measured the same way; planted agreement and bias are found."""

import numpy as np
import pytest
from scipy import stats

from dicast.app.analysis import combining
from dicast.app.analysis.agreement import (
    confusion,
    contests,
    inter_rater_agreement,
    judge_with_people,
    leading_judge,
    person_with_others,
    replacement_p,
    same_as_others,
    same_as_people,
)
from dicast.app.analysis.combining import effective_judges, error_correlation
from dicast.app.analysis.estimates import Estimate, Unknown
from tests.statistics.worlds import EVEN, LEVELS, scores


def chance(seed=0):
    return np.random.default_rng(seed)


def known(result):
    assert isinstance(result, Estimate), result
    return result


def test_a_judge_who_errs_like_a_person_reaches_the_ceiling():
    ratings = scores(chance(), 2000, 4, cuts=EVEN)
    judge = judge_with_people(ratings[:, 0], ratings[:, 1:], "ordinal", LEVELS, chance())
    ceiling = person_with_others(ratings[:, 1:], "ordinal", LEVELS, chance())
    for name in ("pearson", "spearman", "kendall", "kappa"):
        assert known(getattr(judge, name)).holds(known(getattr(ceiling, name)).value), name
    assert judge.items == ceiling.items == 2000
    assert judge.missing == ceiling.missing == 0
    assert judge.confusion.sum() == 2000 * 3
    assert ceiling.confusion.sum() == 2000 * 3 * 2


def test_leaving_one_out_is_what_it_says():
    ratings = scores(chance(), 60, 3, cuts=EVEN)
    first = person_with_others(ratings, "interval", LEVELS, chance(), person=0)
    assert known(first.pearson).value == pytest.approx(stats.pearsonr(ratings[:, 0], ratings[:, 1:].mean(axis=1))[0])
    assert known(first.differences.bias).value == pytest.approx((ratings[:, 0] - ratings[:, 1:].mean(axis=1)).mean())


def test_a_planted_bias_and_spread_are_found():
    rng = chance()
    truth = rng.normal(3, 1, 1000)
    people = truth[:, None] + rng.normal(0, 0.3, (1000, 2))
    judge = truth + 0.4 + rng.normal(0, 0.5, 1000)
    seen = judge_with_people(judge, people, "interval", None, chance()).differences
    spread = 1.96 * np.sqrt(0.5**2 + 0.3**2)
    assert known(seen.bias).holds(0.4)
    assert known(seen.lower_limit).holds(0.4 - spread)
    assert known(seen.upper_limit).holds(0.4 + spread)


def test_missing_ratings_are_left_out_and_counted():
    rng = chance()
    ratings = scores(rng, 400, 4, cuts=EVEN)
    people = np.where(rng.random((400, 3)) < 0.3, np.nan, ratings[:, 1:])
    judge = np.where(np.arange(400) < 40, np.nan, ratings[:, 0])
    seen = judge_with_people(judge, people, "ordinal", LEVELS, chance())
    assert seen.missing == pytest.approx(np.mean(np.isnan(judge) | np.isnan(people).all(axis=1)))
    assert seen.items < 400
    assert known(seen.kappa).items == seen.items
    assert inter_rater_agreement(people, "ordinal", LEVELS, chance()).missing == pytest.approx(np.isnan(people).mean())


def test_one_person_is_compared_with_but_has_no_others():
    ratings = scores(chance(), 50, 2, cuts=EVEN)
    assert known(judge_with_people(ratings[:, 0], ratings[:, 1:], "ordinal", LEVELS, chance()).kappa)
    ceiling = person_with_others(ratings[:, 1:], "ordinal", LEVELS, chance())
    assert all(isinstance(r, Unknown) for r in (ceiling.pearson, ceiling.kappa, ceiling.differences.bias))


def test_nobody_rated():
    nobody = np.full((50, 2), np.nan)
    judge = scores(chance(), 50, 1)[:, 0]
    for seen in (
        judge_with_people(judge, nobody, "ordinal", LEVELS, chance()),
        person_with_others(nobody, "ordinal", LEVELS, chance()),
        judge_with_people(judge, np.empty((50, 0)), "ordinal", LEVELS, chance()),
        person_with_others(np.empty((50, 0)), "ordinal", LEVELS, chance()),
    ):
        assert isinstance(seen.kappa, Unknown)
        assert isinstance(seen.differences.upper_limit, Unknown)
        assert seen.items == 0


def test_labels_have_no_distances_and_fractions_no_levels():
    ratings = scores(chance(), 50, 3, cuts=EVEN)
    labels = judge_with_people(ratings[:, 0], ratings[:, 1:], "nominal", LEVELS, chance())
    assert "no distances" in str(labels.pearson) and "no distances" in str(labels.differences.bias)
    assert known(labels.kappa)
    assert "no distances" in str(inter_rater_agreement(ratings, "nominal", LEVELS, chance()).icc_mean)
    fractions = inter_rater_agreement(ratings / 7, "interval", None, chance())
    assert "no levels" in str(fractions.fleiss)
    assert known(fractions.alpha)
    assert confusion(ratings[:, 0] / 7, ratings[:, 1], LEVELS) is None


def test_self_consistency_is_agreement_over_replicates():
    replicates = scores(chance(), 100, 3, cuts=EVEN, reliability=0.9)
    noisy = scores(chance(), 100, 3, cuts=EVEN, reliability=0.3)
    steady = known(inter_rater_agreement(replicates, "ordinal", LEVELS, chance()).alpha)
    assert steady.low > known(inter_rater_agreement(noisy, "ordinal", LEVELS, chance()).alpha).high


@pytest.mark.parametrize("shared, worth", [(0.0, 4.0), (0.5, 4 / 2.5), (0.8, 4 / 3.4)])
def test_the_number_of_independent_judges_is_found_although_people_err(shared, worth):
    rng = chance(7)
    truth = rng.normal(size=(1500, 1))
    errors = np.sqrt(shared) * rng.normal(size=(1500, 1)) + np.sqrt(1 - shared) * rng.normal(size=(1500, 4))
    people = truth + rng.normal(size=(1500, 3))
    judges = truth + errors + [0.0, 0.5, -0.5, 1.0]
    assert known(effective_judges(judges, people, chance())).holds(worth)
    assert known(error_correlation(judges, people, chance())).holds(shared)
    assert known(error_correlation(judges, truth, chance(), exact=True)).holds(shared)
    assert known(error_correlation(judges, people, chance(), exact=True)).low > shared


def test_the_correlation_of_errors_lies_in_the_middle_of_its_interval():
    """After Fisher's transformation: its own error in a resample, by which it would be moved, says little."""
    people = scores(chance(), 50, 2)
    found = known(error_correlation(scores(chance(2), 50, 3), people, chance()))
    low, value, high = np.arctanh([found.low, found.value, found.high])
    assert value - low == pytest.approx(high - value)


def test_independence_needs_two_judges_and_people():
    ratings = scores(chance(), 50, 4)
    assert "only one judge" in str(effective_judges(ratings[:, :1], ratings[:, 1:], chance()))
    assert "two people or more" in str(effective_judges(ratings[:, :3], ratings[:, 3:], chance()))


@pytest.mark.parametrize("low, known_", [(-0.25, True), (-0.499, True), (-0.4996, False), (-0.6, False)])
def test_errors_that_may_cancel_leave_no_number_of_judges(monkeypatch, low, known_):
    """Of three judges at r = -1/2, whose mean errs by nothing."""
    found = Estimate(0.1, low, 0.4, 50, "given")
    monkeypatch.setattr(combining, "error_correlation", lambda *_, **__: found)
    worth = effective_judges(np.zeros((5, 3)), np.zeros((5, 2)), chance())
    assert isinstance(worth, Estimate) == known_
    if not known_:
        assert "may cancel each other" in str(worth)
        return
    assert (worth.value, worth.low) == (pytest.approx(3 / 1.2), pytest.approx(3 / 1.8))
    assert (worth.high, worth.items) == (pytest.approx(3 / (1 + 2 * low)), 50)


def test_the_alternative_annotator_test_as_computed_by_hand():
    """Three people and a judge, four items. Against the first person the judge is nearer to the others on item 0 (0
    against 2 points), as near on item 1, farther on item 2 (root mean squares of 1 and 3 points are 2.24, of 0 and 2
    are 1.41), and item 3 has nobody else."""
    people = np.array([[5, 3, 3], [2, 3, 1], [3, 1, 3], [4, np.nan, np.nan]], dtype=float)
    judge = np.array([3, 2, 4, 4], dtype=float)
    first = contests(judge, people, nominal=False)[0]
    assert first.item.tolist() == [0, 1, 2]
    assert first.wins.tolist() == [1, 1, 0]
    assert first.losses.tolist() == [0, 1, 1]
    labels = contests(judge, people, nominal=True)[0]
    assert labels.wins.tolist() == [1, 1, 0], "of two others with labels 3 and 3; 3 and 1; 1 and 3"
    assert labels.losses.tolist() == [0, 1, 1]


def test_its_p_value_is_that_of_a_t_test_against_epsilon():
    ratings = scores(chance(), 200, 4, cuts=EVEN)
    contest = contests(ratings[:, 0], ratings[:, 1:], nominal=False)[1]
    expected = stats.ttest_1samp(contest.losses - contest.wins, 0.2, alternative="less").pvalue
    assert replacement_p(contest, 0.2) == pytest.approx(expected, rel=1e-9)
    assert replacement_p(contest, 0.2, np.ones(200)) == pytest.approx(expected, rel=1e-9)
    assert replacement_p(contest, 0.1) > expected


def test_a_judge_who_hardly_ever_differs_from_a_person_is_tested_exactly():
    """Of 30 contests none is decided: under epsilon .1 that is as likely as .9 ** 30, which no t distribution knows."""
    people = np.full((30, 3), 4.0)
    contest = contests(np.full(30, 4.0), people, nominal=False)[0]
    assert replacement_p(contest, 0.1) == pytest.approx(0.9**30, abs=0.01)
    assert replacement_p(contest, 0.2) == pytest.approx(0.8**30, abs=0.005)


def test_the_best_judge_is_named_where_it_is_the_best_and_not_among_many_alike():
    """Twenty judges alike: the highest correlation would be called the best in most samples."""
    named = 0
    for run in range(60):
        rng = np.random.default_rng((6, run))
        quality = rng.normal(size=(150, 1))
        judges, people = quality + 0.8 * rng.normal(size=(150, 20)), quality + 0.6 * rng.normal(size=(150, 3))
        named += (leading_judge(judges, people)[1] or 0.0) < 0.05
        judges[:, 7] = quality[:, 0] + 0.3 * rng.normal(size=150)
        best, p = leading_judge(judges, people, np.arange(150) // 2)
        assert best == 7 and p is not None and p < 0.05
    assert named <= 6
    assert leading_judge(judges[:, :1], people)[1] is None
    assert leading_judge(judges[:8], people[:8])[1] is None


def test_raw_agreement_counts_equal_scores():
    people = np.array([[1, 1, 2], [3, np.nan, 3], [2, np.nan, np.nan], [np.nan] * 3], dtype=float)
    np.testing.assert_allclose(same_as_people(np.array([1, 2, 2, 2.0]), people), [2 / 3, 0, 1, np.nan])
    np.testing.assert_allclose(same_as_people(np.array([np.nan] * 4), people), [np.nan] * 4)
    np.testing.assert_allclose(same_as_others(people), [1 / 3, 1, np.nan, np.nan])
