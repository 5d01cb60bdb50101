from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicast.app.domain.report import PairwiseDifferences, Tally, Weighted, describe, merged, weighted_position

far_scores = st.integers(-(10**9), 10**9).flatmap(lambda low: st.lists(st.integers(low, low + 1000), min_size=2))


def tally_of(values: list[int | None]) -> Tally:
    tally = Tally()
    for value in values:
        tally.add(value)
    return tally


@given(st.lists(st.one_of(st.none(), st.integers(-1000, 1000)), max_size=60))
def test_statistics_equal_those_of_the_list(values: list[int | None]) -> None:
    found = tally_of(values).describe()
    given_scores = [v for v in values if v is not None]
    assert found.n == len(given_scores)
    assert found.failures == len(values) - len(given_scores)
    assert found.histogram == Counter(given_scores)
    assert list(found.histogram) == sorted(found.histogram)
    if given_scores:
        assert found.mean == float(Fraction(sum(given_scores), len(given_scores)))
        assert found.median == statistics.median(given_scores)
        assert (found.min, found.max) == (min(given_scores), max(given_scores))
    else:
        assert (found.mean, found.median, found.min, found.max) == (None, None, None, None)


@given(far_scores)
def test_deviation_does_not_cancel_far_from_zero(values: list[int]) -> None:
    assert describe(Counter(values)).sd == pytest.approx(statistics.stdev(values), rel=1e-12, abs=0)


@pytest.mark.parametrize("values, sd", [([], None), ([4], None), ([4, 4], 0.0), ([1, 3], 2**0.5)])
def test_deviation_of_few(values: list[int], sd: float | None) -> None:
    assert describe(Counter(values)).sd == sd


def test_zero_counts_are_no_scores() -> None:
    assert describe({1: 0, 5: 2, 9: 0}).histogram == {5: 2}


@given(st.lists(st.lists(st.one_of(st.none(), st.integers(0, 10)), max_size=20), max_size=5))
def test_merging_is_counting_all(groups: list[list[int | None]]) -> None:
    tallies = [tally_of(group) for group in groups]
    before = [t.describe() for t in tallies]
    assert merged(tallies).describe() == tally_of(list(itertools.chain(*groups))).describe()
    assert [t.describe() for t in tallies] == before


@pytest.mark.parametrize(
    "groups, want",
    [
        ([], None),
        ([Weighted({}, 1, 10, 1.0)], None),
        ([Weighted({1: 3}, 1, 10, 1.0)], 0.0),
        ([Weighted({10: 3}, 1, 10, 1.0)], 1.0),
        ([Weighted({-1: 1, 1: 1}, -1, 1, 2.0)], 0.5),
        ([Weighted({10: 1}, 0, 10, 3.0), Weighted({0: 1}, 0, 5, 1.0)], 0.75),
        ([Weighted({10: 1}, 0, 10, 3.0), Weighted({}, 0, 5, 100.0)], 1.0),  # unscored: neither good nor bad
        ([Weighted({10: 1}, 0, 10, 0.0)], None),
        ([Weighted({10: 1}, 0, 10, 0.0), Weighted({5: 1}, 0, 10, 1.0)], 0.5),
    ],
)
def test_weighted_position(groups: list[Weighted], want: float | None) -> None:
    assert weighted_position(groups) == want


texts = st.tuples(st.sampled_from(["a", "b", "ä|1", ""]), st.integers(0, 2))
votes = st.lists(st.tuples(texts, st.sampled_from(["clear", "true"]), st.integers(-5, 5)), max_size=40)


def brute_force(given_votes: list[tuple[tuple[str, int], str, int]]) -> dict[str, tuple[float, int]]:
    cells = defaultdict(list)
    for text, criterion, score in given_votes:
        cells[criterion, text].append(score)
    differences = defaultdict(list)
    for (criterion, _), values in cells.items():
        differences[criterion] += [abs(a - b) for a, b in itertools.combinations(values, 2)]
    return {c: (sum(d) / len(d), len(d)) for c, d in differences.items() if d}


@given(votes)
def test_differences_equal_those_of_all_pairs(given_votes: list[tuple[tuple[str, int], str, int]]) -> None:
    differences = PairwiseDifferences()
    for (item, replicate), criterion, score in given_votes:
        differences.add(item, replicate, criterion, score)
    assert differences.by_criterion() == brute_force(given_votes)
    assert differences.share == 1


some_text = st.tuples(st.integers(0, 40).map(str), st.just(0))


@given(
    st.lists(st.tuples(some_text, st.just("c"), st.integers(0, 9)), max_size=200),
    st.integers(1, 100),
    st.randoms(use_true_random=False),
)
def test_a_sample_is_bounded_and_does_not_depend_on_order(given_votes, capacity, random) -> None:
    def sample(order):
        differences = PairwiseDifferences(capacity)
        for (item, replicate), criterion, score in order:
            differences.add(item, replicate, criterion, score)
        return differences

    first = sample(given_votes)
    shuffled = list(given_votes)
    random.shuffle(shuffled)
    second = sample(shuffled)
    assert first.by_criterion() == second.by_criterion()
    assert first.share == second.share
    kept = {text for text, _, _ in given_votes if text in first._texts}
    assert first.by_criterion() == brute_force([v for v in given_votes if v[0] in kept])
    assert sum(1 for v in given_votes if v[0] in kept) <= capacity
    if len(given_votes) <= capacity:
        assert first.share == 1


def test_a_sample_of_many_texts_is_near_the_truth() -> None:
    differences = PairwiseDifferences(capacity=2_000)
    for i in range(20_000):
        differences.add(f"item-{i}", 0, "c", 0)
        differences.add(f"item-{i}", 0, "c", i % 5)
    found = differences.by_criterion()["c"]
    assert differences.share in {1 / 32, 1 / 16}
    assert found.pairs == pytest.approx(20_000 * differences.share, rel=0.2)
    assert found.mean_difference == pytest.approx(2.0, abs=0.2)
