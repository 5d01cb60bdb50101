"""Which deployment a unit goes to."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicast.app.domain.plan import EXPLORED, Candidate, assign, choose

SURE = 0.5
"""A draw that explores nothing."""

candidates = st.lists(
    st.builds(
        Candidate,
        success_rate=st.floats(0, 1),
        in_hand=st.integers(0, 200).map(float),
        limit=st.integers(1, 100),
        broken=st.booleans(),
    ),
    min_size=1,
    max_size=6,
)
draws = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize(
    "given, chosen",
    [
        ([Candidate(0.9, 0, 10), Candidate(1.0, 0, 10)], 1),
        ([Candidate(1.0, 5, 10), Candidate(1.0, 4, 10)], 1),
        ([Candidate(1.0, 20, 100), Candidate(1.0, 5, 10)], 0),  # load is relative to the limit
        ([Candidate(0.5, 0, 10), Candidate(1.0, 9, 10)], 1),  # 0.5 against 0.526
        ([Candidate(0.5, 0, 10), Candidate(1.0, 11, 10)], 0),  # against 0.476
        ([Candidate(1.0, 0, 10, broken=True), Candidate(0.1, 50, 10)], 1),
        ([Candidate(0.2, 0, 10, broken=True), Candidate(0.1, 0, 10, broken=True)], 0),
        ([Candidate(0.0, 0, 1)], 0),
    ],
)
def test_the_best_by_success_and_load(given, chosen):
    assert choose(given, SURE).deployment == chosen


def test_chance_breaks_ties():
    equal = [Candidate(1.0, 3, 10)] * 3
    chosen = [choose(equal, EXPLORED + (1 - EXPLORED) * n / 300).deployment for n in range(300)]
    assert Counter(chosen) == {0: 100, 1: 100, 2: 100}


def test_a_small_share_explores_where_there_is_room():
    one_bad = [Candidate(1.0, 0, 10), Candidate(0.01, 0, 10), Candidate(0.01, 10, 10), Candidate(0.0, 0, 10, True)]
    chosen = Counter(choose(one_bad, n / 1000).deployment for n in range(1000))
    assert chosen == {0: 1000 - 1000 * EXPLORED, 1: 1000 * EXPLORED}


def test_units_are_counted_at_once_so_that_none_takes_everything():
    chosen = Counter(
        choice.deployment for choice in assign([Candidate(1.0, 0, 30), Candidate(1.0, 0, 10)], [SURE] * 80)
    )
    assert chosen == {0: 60, 1: 20}


def test_elsewhere_tells_of_another_that_could_have_been_taken():
    assert choose([Candidate(1.0, 0, 1), Candidate(0.1, 0, 1)], SURE).elsewhere
    assert not choose([Candidate(1.0, 0, 1), Candidate(0.1, 0, 1, broken=True)], SURE).elsewhere
    assert not choose([Candidate(1.0, 0, 1, broken=True), Candidate(0.1, 0, 1, broken=True)], SURE).elsewhere
    assert not choose([Candidate(1.0, 0, 1)], SURE).elsewhere


@given(candidates, draws)
def test_a_broken_one_is_chosen_only_if_all_are(given, draw):
    choice = choose(given, draw)
    assert 0 <= choice.deployment < len(given)
    assert not given[choice.deployment].broken or all(candidate.broken for candidate in given)


@given(candidates, st.floats(EXPLORED, 1, exclude_max=True))
def test_without_exploring_nobody_usable_scores_higher(given, draw):
    choice = choose(given, draw)
    rivals = [c.score for c in given if not c.broken or all(other.broken for other in given)]
    assert choice.score == pytest.approx(max(rivals))


@given(candidates, st.lists(draws, max_size=60))
def test_a_page_is_assigned_whole_and_as_if_one_by_one(given, chances):
    choices = assign(given, chances)
    assert len(choices) == len(chances)
    taken = Counter(choice.deployment for choice in choices[:-1])
    last = [Candidate(c.success_rate, c.in_hand + taken[n], c.limit, c.broken) for n, c in enumerate(given)]
    assert not choices or choices[-1] == choose(last, chances[-1])


@given(st.floats(0, 1), st.integers(1, 50), st.integers(1, 50))
def test_better_and_emptier_is_never_worse(rate, limit, in_hand):
    worse = Candidate(rate, in_hand, limit)
    assert worse.score <= Candidate(min(1.0, rate + 0.1), in_hand, limit).score
    assert worse.score <= Candidate(rate, in_hand - 1, limit).score


def test_a_recovered_deployment_is_found_again():
    """Its success rate moves only with the units that it gets; some hundreds are enough to make it the best."""
    chance = random.Random(7)
    good, ended = 0.0, 40.0
    chosen = []
    for _ in range(1000):
        rate = (good + 1) / (ended + 1)
        chosen.append(choose([Candidate(1.0, 5, 10), Candidate(rate, 0, 10)], chance.random()).deployment)
        if chosen[-1] == 1:
            good, ended = good * 0.9 + 1, ended * 0.9 + 1
    assert chosen[:100].count(1) < 20
    assert chosen[-100:].count(1) > 80
