"""Confidence sequences: against another library, on simulated jobs looked at after every page, and at the edges."""

import numpy as np
import pytest

from dicast.app.analysis.estimates import Estimate, Unknown
from dicast.app.analysis.sequences import (
    AtLeast,
    BetterBy,
    Capital,
    Inquiry,
    NoWiderThan,
    differences_of,
    needed,
    sequence,
)

ITEMS, PAGE = 1200, 25
SHAPES = {"skewed": [0.03, 0.05, 0.1, 0.27, 0.55], "even": [0.1, 0.2, 0.4, 0.2, 0.1], "yes or no": [0.4, 0, 0, 0, 0.6]}


def some_scores(rng, shape, items=ITEMS):
    return rng.choice(np.arange(1.0, 6.0), items, p=SHAPES[shape])


def ask(inquiry, scores):
    """The final answer, however many pages it takes."""
    for start in range(0, len(scores), PAGE):
        answer = inquiry.feed(scores[start : start + PAGE])
        if answer.final:
            break
    return answer


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize("away, most", [(0.3, 0.12), (0.2, 0.30)])
def test_a_question_away_from_its_threshold_is_soon_answered(shape, side, away, most):
    rng = np.random.default_rng(1)
    needed_items, wrong = [], 0
    for _ in range(200):
        scores = some_scores(rng, shape)
        threshold = float(np.clip(scores.mean() - side * away * scores.std(), 1, 5))
        answer = ask(Inquiry(AtLeast(threshold), 1, 5, ITEMS), scores)
        needed_items.append(answer.items)
        wrong += answer.state != ("yes" if side > 0 else "no")
    assert np.median(needed_items) <= most * ITEMS
    assert wrong <= 0.05 * 200


@pytest.mark.parametrize("shape", SHAPES)
def test_a_truth_on_the_threshold_is_seldom_denied_however_often_one_looks(shape):
    """Any answer before all items were seen counts as wrong, in either direction; one looks after every item."""
    rng = np.random.default_rng(2)
    wrong = 0
    for _ in range(1000):
        scores = some_scores(rng, shape)
        answer = Inquiry(AtLeast(float(scores.mean())), 1, 5, ITEMS).feed(scores[:-1])
        wrong += answer.state != "not yet"
    assert wrong <= 0.05 * 1000


def test_two_systems_are_told_apart_and_equal_ones_are_not():
    rng = np.random.default_rng(3)
    early, wrong = [], 0
    for _ in range(200):
        a = some_scores(rng, "even")
        b = np.clip(a + rng.choice([-1.0, 0, 1], ITEMS, p=[0.3, 0.5, 0.2]), 1, 5)
        apart = differences_of(a, b)
        near = float(apart.mean())
        early.append(ask(Inquiry(BetterBy(near - 0.3 * apart.std()), 1, 5, ITEMS), apart).items)
        wrong += ask(Inquiry(BetterBy(near), 1, 5, ITEMS), apart).items < ITEMS
    # A difference may be twice as large as a score, which limits what may be staked on a small one.
    assert np.median(early) <= 0.15 * ITEMS
    assert wrong <= 0.05 * 200


def test_an_interval_that_must_be_narrow():
    rng = np.random.default_rng(4)
    held, used = [], []
    for _ in range(20):
        scores = some_scores(rng, "skewed")
        inquiry = Inquiry(NoWiderThan(0.5), 1, 5, ITEMS)
        answer = ask(inquiry, scores)
        found = inquiry.interval()
        assert answer.state == "known" and isinstance(found, Estimate) and found.width <= 0.5
        held.append(found.holds(scores.mean()))
        used.append(answer.items)
    assert np.mean(held) >= 0.95
    assert np.median(used) < 0.3 * ITEMS


def test_the_sequence_is_about_as_narrow_as_another_librarys():
    """Both bet by Waudby-Smith and Ramdas, with other stakes; without a population, as the library knows none."""
    ville = pytest.importorskip("ville", reason="pip install -e .[references]")
    rng = np.random.default_rng(5)
    for shape in SHAPES:
        scores = (some_scores(rng, shape, 400) - 1) / 4
        low, high = sequence(scores)
        second = ville.BettingCS(bounds=(0, 1), alpha=0.05, grid=2000).fit(scores).interval()
        assert low < scores.mean() < high
        assert high - low <= 1.1 * (second[1] - second[0])


def test_capital_is_fair_against_the_true_mean():
    """Its mean over all orders of a small population is 1 after every step: an exact check of the odds."""
    from itertools import permutations

    scores = np.array([0.0, 0.2, 0.9, 1.0, 0.4])
    ends = []
    for order in permutations(scores):
        capital = Capital(float(scores.mean()), len(scores))
        capital.feed(np.array(order[:3]))
        ends.append(np.exp(capital._stakes).mean(axis=1))
    np.testing.assert_allclose(np.mean(ends, axis=0), [1, 1], atol=1e-9)


def test_a_page_at_a_time_is_all_at_once():
    scores = (some_scores(np.random.default_rng(6), "even") - 1) / 4
    whole, paged = Capital(0.4, ITEMS), Capital(0.4, ITEMS)
    whole.feed(scores)
    for start in range(0, ITEMS, 7):
        paged.feed(scores[start : start + 7])
    assert paged.above == pytest.approx(whole.above)
    assert paged.below == pytest.approx(whole.below)


def test_all_items_seen_is_an_exact_answer():
    scores = np.array([1.0, 5, 3, 3])
    assert Inquiry(AtLeast(3), 1, 5, 4).feed(scores).state == "yes"
    assert Inquiry(AtLeast(3.01), 1, 5, 4).feed(scores).state == "no"
    assert Inquiry(NoWiderThan(0.001), 1, 5, 4).feed(scores).state == "known"
    found = Inquiry(AtLeast(3), 1, 5, 4)
    found.feed(scores)
    assert found.interval().width == pytest.approx(0, abs=1e-6)


def test_a_budget_ends_the_inquiry_and_a_final_answer_stays():
    scores = some_scores(np.random.default_rng(7), "even")
    inquiry = Inquiry(AtLeast(float(scores.mean())), 1, 5, ITEMS, most=50)
    assert inquiry.feed(scores[:25]).state == "not yet"
    assert inquiry.feed(scores[25:50]).state == "spent"
    assert inquiry.feed(scores[50:75]).items == 50
    inquiry = Inquiry(AtLeast(1.5), 1, 5, ITEMS)
    assert inquiry.feed(scores[:50]).state == "yes"
    assert inquiry.feed(np.ones(500)).state == "yes"


def test_items_without_a_score_leave_the_population():
    rng = np.random.default_rng(8)
    scores = some_scores(rng, "even", 100)
    gaps = np.where(rng.random(100) < 0.2, np.nan, scores)
    inquiry = Inquiry(AtLeast(float(np.nanmean(gaps))), 1, 5, 100)
    for start in range(0, 100, 20):
        answer = inquiry.feed(gaps[start : start + 20])
    assert answer.missing == np.isnan(gaps).sum()
    assert answer.items + answer.missing == 100
    assert answer.state == "yes"
    nothing = Inquiry(AtLeast(3), 1, 5, 10)
    assert nothing.feed(np.full(10, np.nan)).state == "spent"
    assert isinstance(nothing.interval(), Unknown)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="lie between 1 and 5"):
        Inquiry(AtLeast(3), 1, 5).feed(np.array([6.0]))
    with pytest.raises(ValueError, match="more items than the 3"):
        Inquiry(AtLeast(3), 1, 5, 3).feed(np.full(4, 3.0))
    with pytest.raises(ValueError, match="outside 1 to 5"):
        Inquiry(AtLeast(7), 1, 5)
    with pytest.raises(ValueError, match="need a range"):
        Inquiry(AtLeast(3), 3, 3)
    with pytest.raises(ValueError, match="more scores than the 2"):
        Capital(0.5, 2).feed(np.full(3, 0.5))


def test_scores_at_the_edges_neither_warn_nor_fail():
    for score in (0.0, 1.0):
        low, high = sequence(np.full(100, score), 200)
        assert low <= score <= high
        assert high - low < 0.6
    assert sequence(np.empty(0)) == (0.0, 1.0)
    assert needed() == pytest.approx(np.log(40))
