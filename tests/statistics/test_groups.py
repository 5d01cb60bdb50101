"""Groups, two runs, and pairwise choices: planted differences, ranks and position biases are found."""

import choix
import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from dicast.app.analysis.estimates import Estimate, Unknown
from dicast.app.analysis.groups import compare_groups, holm
from dicast.app.analysis.preferences import (
    PRIOR_SD,
    both_orders,
    bradley_terry,
    likely_strengths,
    position,
    share_of_wins,
    win_rate,
)
from dicast.app.analysis.ratings import RatingScale, check
from dicast.app.analysis.runs import NotComparable, RunScores, check_comparable, compare_runs


def systems(rng, items=200):
    quality = rng.normal(0, 1, items)
    means = {"a": 3.0, "b": 3.2, "c": 3.5}
    scores = np.concatenate([quality + mean + rng.normal(0, 0.3, items) for mean in means.values()])
    return scores, np.repeat(list(means), items), np.tile(np.arange(items), 3)


def test_groups_that_share_their_items_are_compared_in_pairs():
    rng = np.random.default_rng(0)
    scores, group, item = systems(rng)
    seen = compare_groups(scores, group, item, rng)
    assert seen.names == ("a", "b", "c")
    for pair, planted in zip(seen.differences, (-0.2, -0.5, -0.3), strict=True):
        assert pair.difference.holds(planted)
        assert pair.p < 0.001
    paired = stats.ttest_rel(scores[:200], scores[200:400]).confidence_interval()
    assert (seen.differences[0].difference.low, seen.differences[0].difference.high) == pytest.approx(paired)
    assert seen.ranks.argmax(axis=1).tolist() == [2, 1, 0]
    np.testing.assert_allclose(seen.ranks.sum(axis=0), 1)
    np.testing.assert_allclose(seen.ranks.sum(axis=1), 1)


def test_groups_of_different_items_are_compared_by_welch():
    rng = np.random.default_rng(1)
    a, b = rng.normal(0, 1, 60), rng.normal(0.5, 2, 40)
    seen = compare_groups(np.r_[a, b], np.repeat(["a", "b"], [60, 40]), np.arange(100), rng)
    welch = stats.ttest_ind(a, b, equal_var=False)
    found = seen.differences[0]
    assert (found.difference.low, found.difference.high) == pytest.approx(tuple(welch.confidence_interval()))
    assert found.p == pytest.approx(welch.pvalue)


def test_several_scores_of_an_item_are_one_piece():
    rng = np.random.default_rng(2)
    values = np.repeat(rng.normal(size=50), 4)
    seen = compare_groups(values, np.repeat("one", 200), np.repeat(np.arange(50), 4), rng)
    lone = stats.t.interval(0.95, 49, values.mean(), stats.sem(values[::4]))
    assert (seen.means[0].low, seen.means[0].high) == pytest.approx(lone)
    assert seen.differences == ()


def test_equal_systems_share_their_ranks_and_holm_keeps_them_equal():
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(100):
        seen = compare_groups(rng.normal(size=400), np.repeat(list("abcd"), 100), np.arange(400), rng)
        wrong += min(pair.p for pair in seen.differences) < 0.05
    assert wrong <= 10
    p = np.array([0.01, 0.04, 0.03])
    np.testing.assert_allclose(holm(p), multipletests(p, method="holm")[1])
    # S. Holm (1979): the smallest times 3, the next times 2, never below those before.
    np.testing.assert_allclose(holm(p), [0.03, 0.06, 0.06])


def test_groups_that_say_too_little():
    rng = np.random.default_rng(4)
    seen = compare_groups(np.r_[np.full(10, 3.0), 1, 2], np.repeat(["same", "two"], [10, 2]), np.arange(12), rng)
    assert all(isinstance(mean, Unknown) for mean in seen.means)
    assert seen.differences[0].p is None
    assert seen.ranks is None
    assert compare_groups(np.array([np.nan]), ["a"], [0], rng).names == ()


def run(rng, moved):
    rows = [
        (f"i{item}", "clarity", judge, float(np.clip(round(3 + bias + rng.normal(0, 0.6)), 1, 5)))
        for item in range(100)
        for judge, bias in (("strict", 0.0), ("moved", moved))
    ]
    return checked(rows)


def checked(rows):
    frame = pd.DataFrame(rows, columns=["item", "dimension", "rater", "score"])
    return check(frame, {"clarity": RatingScale(1, 5)}, {row[0] for row in rows})


def test_a_judge_who_moved_between_two_runs_is_found():
    rng = np.random.default_rng(5)
    seen = compare_runs(run(rng, 0.0), run(rng, 1.0))
    moved, strict = seen.shifts
    assert (moved.judge, strict.judge) == ("moved", "strict")
    assert moved.shift.low > 0.5 and moved.p < 0.001
    assert strict.shift.holds(0) and strict.p > 0.01
    assert len(seen.moved) == 20
    assert (seen.moved["moved"].abs().diff().dropna() <= 0).all()
    assert (seen.moved["second"] - seen.moved["first"] == seen.moved["moved"]).all()


def test_items_of_one_run_alone_are_counted():
    rng = np.random.default_rng(6)
    first, second = run(rng, 0.0), run(rng, 0.0)
    some = second.frame[second.frame["item"] != "i7"]
    seen = compare_runs(first, type(second)(some, 0))
    assert [(shift.only_first, shift.only_second) for shift in seen.shifts] == [(1, 0), (1, 0)]
    same = compare_runs(first, first)
    assert isinstance(same.shifts[0].shift, Unknown) and same.shifts[0].p is None


def test_runs_that_moved_alike_have_an_interval_within_the_scale():
    first = run(np.random.default_rng(6), 0.0)
    shifted = type(first)(first.frame.assign(score=first.frame["score"] + 1), 0)
    lengths = {"clarity": 4.0}
    for second, value in ((first, 0.0), (shifted, 1.0)):
        for shift in compare_runs(first, second, lengths=lengths).shifts:
            assert shift.shift.value == value and -4 < shift.shift.low < value < shift.shift.high < 4
            assert shift.p == 1.0 if value == 0 else shift.p < 0.001


def test_few_items_that_moved_alike_are_no_clear_move():
    rows = [(f"i{n}", "clarity", "judge", 3) for n in range(5)]
    first = checked(rows)
    second = checked([(*row[:3], 4) for row in rows])
    (shift,) = compare_runs(first, second, lengths={"clarity": 4.0}).shifts
    assert shift.p == 2 * 0.5**5 and shift.shift.low < 0 < shift.shift.high


def test_runs_that_measured_something_else_are_refused():
    one, other = RunScores("hash-1", RatingScale(1, 5)), RunScores("hash-2", RatingScale(1, 7))
    check_comparable({"clarity": one, "x": one}, {"clarity": one})
    with pytest.raises(NotComparable, match="clarity: another rubric; clarity: another scale"):
        check_comparable({"clarity": one}, {"clarity": other})
    with pytest.raises(NotComparable, match="no dimension in common"):
        check_comparable({"clarity": one}, {"beauty": one})


def choices(rng, strengths, pairs):
    a = rng.integers(0, len(strengths), pairs)
    b = (a + rng.integers(1, len(strengths), pairs)) % len(strengths)
    won = rng.random(pairs) < 1 / (1 + np.exp(strengths[b] - strengths[a]))
    return a, b, won.astype(float)


def test_planted_strengths_are_found_and_are_the_librarys():
    rng = np.random.default_rng(11)
    strengths = np.array([-1.0, 0.0, 0.3, 0.7])
    a, b, won = choices(rng, strengths, 2000)
    seen = bradley_terry(a, b, won, np.arange(2000), rng)
    assert seen.names == ("0", "1", "2", "3")
    second = choix.opt_pairwise(4, [(x, y) if w else (y, x) for x, y, w in zip(a, b, won, strict=True)])
    for found, planted, other in zip(seen.strengths, strengths, second, strict=True):
        assert found.holds(planted)
        assert found.value == pytest.approx(other, abs=1e-4)
    assert seen.ranks[3, 0] > 0.99 and seen.ranks[0, 3] > 0.99


def test_strengths_of_many_judged_items_hold_the_truth():
    rng = np.random.default_rng(8)
    strengths = np.array([-0.5, 0.0, 0.5])
    held = []
    for _ in range(200):
        a, b, won = choices(rng, strengths, 300)
        seen = bradley_terry(a, b, won, np.arange(300), rng)
        held += [found.holds(planted) for found, planted in zip(seen.strengths, strengths, strict=True)]
    assert 0.92 < np.mean(held) < 0.98


def test_who_never_lost_has_no_strength():
    rng = np.random.default_rng(9)
    a, b, won = np.zeros(50, dtype=int), np.ones(50, dtype=int), np.ones(50)
    assert "never won, or never lost" in str(bradley_terry(a, b, won, np.arange(50), rng))
    assert "too few" in str(bradley_terry(a[:3], b[:3], won[:3], np.arange(3), rng))
    with pytest.raises(ValueError, match="itself"):
        bradley_terry(a, a, won, np.arange(50), rng)


@pytest.mark.parametrize("seed", range(12, 24))
def test_strengths_with_a_prior_are_those_without_where_much_was_compared(seed):
    rng = np.random.default_rng(seed)
    a, b, won = choices(rng, np.array([-1.0, 0.0, 0.3, 0.7]), 5000)
    plain, likely = bradley_terry(a, b, won, np.arange(5000), rng), likely_strengths(a, b, won, rng)
    for one, other in zip(plain.strengths, likely.strengths, strict=True):
        assert other.value == pytest.approx(one.value, abs=0.02)
        assert other.width == pytest.approx(one.width, rel=0.1)


def test_strengths_with_a_prior_hold_the_truth_after_few_comparisons():
    """Worlds are drawn from the prior, since that is what the intervals promise."""
    rng = np.random.default_rng(13)
    held, told, right = [], [], []
    for _ in range(400):
        truth = rng.normal(0, PRIOR_SD, 4)
        a, b, won = choices(rng, truth, 8)
        seen = likely_strengths(a, b, won, rng)
        own = truth[[int(name) for name in seen.names]]
        own -= own.mean()
        held += [one.holds(true) for one, true in zip(seen.strengths, own, strict=True)]
        told.append(seen.ranks[:, 0].max())
        right.append(seen.ranks[:, 0].argmax() == own.argmax())
    assert 0.92 < np.mean(held) < 0.98
    assert np.mean(right) == pytest.approx(np.mean(told), abs=0.06)


def test_nothing_compared_leaves_no_strength():
    rng = np.random.default_rng(14)
    assert "nothing was compared" in str(likely_strengths([], [], np.array([]), rng))
    assert "no choices" in str(share_of_wins(np.array([np.nan])))


@pytest.mark.parametrize(("won", "of"), [(0, 1), (1, 1), (3, 3), (2, 7), (40, 80)])
def test_shares_of_wins_are_wilsons(won, of):
    found = share_of_wins(np.array([1.0] * won + [0.0] * (of - won)))
    second = stats.binomtest(won, of).proportion_ci(method="wilson")
    assert (found.value, found.items) == (won / of, of)
    assert (found.low, found.high) == pytest.approx((second.low, second.high), abs=1e-9)


def test_a_preference_that_turns_with_the_order_is_a_tie():
    both = both_orders(np.array([1, 1, 0, 0, 0.5, 1, np.nan]), np.array([1, 0, 1, 0, 0.5, 0.5, 1]))
    np.testing.assert_array_equal(both, [1, 0.5, 0.5, 0, 0.5, 1, np.nan])


def test_a_planted_position_bias_is_found():
    rng = np.random.default_rng(10)
    always_first = rng.random(400) < 0.3
    better = rng.integers(0, 2, 400).astype(float)
    probe = position(np.where(always_first, 1.0, better), np.where(always_first, 0.0, better))
    assert probe.consistent.holds(0.7)
    assert probe.first_wins.holds(0.65)
    assert probe.pairs == 400
    fair = position(better, better)
    assert fair.consistent.low == pytest.approx(0.025 ** (1 / 400)) and fair.consistent.high == 1
    assert isinstance(win_rate(better), Estimate)


def test_ties_alone_leave_nothing_to_draw_an_interval_from():
    """Every comparison comes out as expected, to the last bit; one win among them is enough."""
    rng = np.random.default_rng(1)
    ties, first, second = np.full(20, 0.5), np.full(20, "a"), np.full(20, "b")
    assert "all comparisons came out as expected" in str(bradley_terry(first, second, ties, np.arange(20), rng))
    ties[3] = 1.0
    found = bradley_terry(first, second, ties, np.arange(20), rng)
    assert all(estimate.low < estimate.value < estimate.high for estimate in found.strengths)
