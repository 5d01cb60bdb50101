"""Intervals speak of the population that they name: of other clusters where items come in clusters."""

from __future__ import annotations

import numpy as np
import pytest

from dicast.app.analysis.agreement import alpha, correlation, differences, fleiss, icc
from dicast.app.analysis.biases import effect_beside_people
from dicast.app.analysis.estimates import Estimate, Floats, Result, Unknown
from dicast.app.analysis.means import mean
from dicast.app.analysis.powered import powered_mean
from lab.statistics import populations
from lab.statistics.simulated import LEVELS, RatingWorld, draw


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def some() -> tuple[Floats, Floats]:
    drawn = draw(RatingWorld(missing=0.0), 60, rng())
    return drawn.judges, drawn.people


def same(one: Result, other: Result) -> bool:
    assert isinstance(one, Estimate) and isinstance(other, Estimate)
    return (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high), rel=1e-9)


def test_copies_of_an_item_in_its_cluster_tell_peoples_mean_nothing_new() -> None:
    judges, people = some()
    judge, seen = judges.mean(axis=1), np.where(np.arange(60) < 40, people.mean(axis=1), np.nan)
    once = powered_mean(judge, seen, bounds=(1, 5))
    copies = [np.repeat(of, 3) for of in (judge, seen)]
    thrice = powered_mean(copies[0], copies[1], bounds=(1, 5), clusters=np.repeat(np.arange(60) + 9, 3))
    assert once.judges_weight > 0.2 and thrice.judges_weight == pytest.approx(once.judges_weight)
    assert same(once.both, thrice.both) and same(once.people_alone, thrice.people_alone)
    naive = powered_mean(copies[0], copies[1], bounds=(1, 5)).both
    assert isinstance(naive, Estimate) and isinstance(once.both, Estimate) and naive.width < 0.7 * once.both.width


def test_copies_of_an_item_in_its_cluster_tell_agreement_nothing_new() -> None:
    judges, people = some()
    x, y, clusters = judges[:, 0], people[:, 0], np.repeat(np.arange(60), 3)
    for kind in ("pearson", "spearman", "kendall"):
        once = correlation(x, y, kind, rng())
        assert same(once, correlation(np.repeat(x, 3), np.repeat(y, 3), kind, rng(), clusters=clusters))
    once, thrice = (differences(a, b, rng(), clusters=of) for a, b, of in (
        (x, y, None), (np.repeat(x, 3), np.repeat(y, 3), clusters),
    ))  # fmt: skip
    assert same(once.bias, thrice.bias)
    copied = np.repeat(people, 3, axis=0)
    for one, other in (
        (fleiss(people, LEVELS, rng()), fleiss(copied, LEVELS, rng(), clusters)),
        (alpha(people, LEVELS, "ordinal", rng()), alpha(copied, LEVELS, "ordinal", rng(), clusters)),
        (icc(people, rng()), icc(copied, rng(), clusters=clusters)),
    ):
        assert isinstance(one, Estimate) and isinstance(other, Estimate)
        assert other.width == pytest.approx(one.width, rel=0.05) and other.method == "bootstrap by cluster"
        assert other.items == 3 * one.items


def test_a_probe_leaves_out_whole_clusters() -> None:
    judges, people = some()
    x = np.log2(rng().uniform(50, 500, 60))
    once, p = effect_beside_people(x, judges[:, 0], people)
    copies = np.repeat(x, 3), np.repeat(judges[:, 0], 3), np.repeat(people, 3, axis=0)
    thrice, q = effect_beside_people(*copies, np.repeat(np.arange(60), 3))
    assert isinstance(once, Estimate) and isinstance(thrice, Estimate) and p is not None and q is not None
    assert thrice.width == pytest.approx(once.width, rel=0.1)
    few, _ = effect_beside_people(x, judges[:, 0], people, np.arange(60) % 5)
    assert isinstance(few, Unknown) and "10 clusters" in few.reason


def test_few_clusters_have_no_interval_and_say_so() -> None:
    judges, people = some()
    clusters = np.arange(60) % 4
    found = powered_mean(judges[:, 0], people.mean(axis=1), clusters=clusters).both
    assert isinstance(found, Unknown) and "items of 4 clusters" in found.reason
    far = correlation(judges[:, 0], people[:, 0], "pearson", rng(), clusters=clusters)
    assert isinstance(far, Unknown) and "10 clusters or more, and there are 4" in far.reason


def test_intervals_hold_for_other_clusters() -> None:
    """In the large: lab.statistics.populations."""
    judge, people, _ = populations.drawn_clusters(20_000, 400_000, 0.0, rng())
    truth, held = (judge.mean(), people.mean()), []
    for run in range(60):
        judge, people, cluster = populations.drawn_clusters(60, 1200, 0.0, np.random.default_rng((3, run)))
        seen = np.where(np.arange(len(judge)) % 6 == 0, people.mean(axis=1), np.nan)
        powered = [powered_mean(judge, seen, bounds=(1, 5), clusters=of).both for of in (cluster, None)]
        results = [mean(judge, clusters=cluster), mean(judge), *powered]
        held.append([isinstance(of, Estimate) and of.holds(truth[at > 1]) for at, of in enumerate(results)])
    by_cluster, by_text, powered_by_cluster, powered_by_text = np.mean(held, axis=0)
    assert min(by_cluster, powered_by_cluster) >= 0.85 and by_text <= 0.65 and powered_by_text <= 0.85
