"""The search finds planted judges at their price, and nothing in noise."""

import numpy as np
import pytest

from dicast.app.analysis.estimates import Estimate, Unknown
from dicast.app.analysis.panels import cheapest_reaching, search


def test_the_cheapest_panel_that_is_good_enough_is_found():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=400)
    noise = np.array([0.6, 0.9, 0.9, 4.0])
    judges = truth[:, None] + rng.normal(size=(400, 4)) * noise
    costs = np.array([10.0, 1, 1, 1])
    found = search(judges, truth + rng.normal(0, 0.3, 400), costs, rng, largest=2)
    single = found.front[0]
    assert single.panel.judges in {(1,), (2,)} and single.panel.cost == 1
    values = [choice.apparent for choice in found.front]
    assert values == sorted(values)


def test_the_cheapest_panel_that_is_proved_to_reach_it_is_named():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=600)
    judges = truth[:, None] + rng.normal(size=(600, 4)) * np.array([0.6, 0.9, 0.9, 4.0])
    costs, people = np.array([10.0, 1, 1, 1]), truth + rng.normal(0, 0.3, 600)

    def reaching(agreement):
        return cheapest_reaching(judges, people, costs, agreement, np.random.default_rng(1), largest=2)

    cheap, dear = reaching(0.74), reaching(0.79)
    assert cheap.panel.judges == (1, 2) and cheap.panel.cost == 2 and cheap.agreement.low >= 0.74
    assert 0 in dear.panel.judges
    assert "is not proved" in str(reaching(0.99))
    assert "40 rated items" in str(cheapest_reaching(judges[:39], people[:39], costs, 0.1, rng))


def test_no_panel_is_named_that_does_not_reach_it():
    """Twelve judges alike, who correlate by 0.6: the best of many looks as if it reached more."""
    named = 0
    for run in range(60):
        rng = np.random.default_rng((4, run))
        truth = rng.normal(size=100)
        shared = rng.normal(size=100)
        judges = (
            0.6 * truth[:, None]
            + 0.8 * np.sqrt(0.95) * shared[:, None]
            + 0.8 * np.sqrt(0.05) * rng.normal(size=(100, 12))
        )
        named += not isinstance(cheapest_reaching(judges, truth, np.ones(12), 0.63, rng, largest=1), Unknown)
    assert named <= 5


def test_in_noise_nothing_is_found_although_the_best_panel_looks_good():
    rng = np.random.default_rng(1)
    looks, found = [], 0
    for _ in range(60):
        seen = search(rng.normal(size=(100, 6)), rng.normal(size=100), np.ones(6), rng, largest=2)
        looks.append(seen.apparent.max())
        found += len(seen.front) > 0
    assert np.mean(looks) > 0.12
    assert found <= 5


def test_what_is_told_of_the_chosen_panel_is_what_it_is_worth():
    """Judges alike: the best of many looks better than they are; the told agreement does not, on average."""
    rng = np.random.default_rng(2)
    apparent, told = [], []
    for _ in range(60):
        truth = rng.normal(size=80)
        judges = 0.5 * truth[:, None] + np.sqrt(0.75) * rng.normal(size=(80, 12))
        seen = search(judges, truth, np.ones(12), rng, largest=1)
        apparent.append(seen.apparent.max())
        told += [choice.agreement.value for choice in seen.front]
    assert np.mean(apparent) > 0.58
    assert np.mean(told) == pytest.approx(0.5, abs=0.06)


def test_ranks_and_learned_weights_are_among_the_ways():
    rng = np.random.default_rng(3)
    truth = rng.normal(size=200)
    judges = truth[:, None] + rng.normal(size=(200, 3)) * [0.3, 1.0, 2.0]
    seen = search(judges, np.exp(truth), np.ones(3), rng, measure="spearman")
    assert {panel.combination for panel in seen.panels} == {"mean", "median", "trimmed", "majority", "worst", "learned"}
    assert isinstance(seen.front[0].agreement, Estimate)


def test_too_few_items_or_people_who_all_say_the_same():
    rng = np.random.default_rng(4)
    judges = rng.normal(size=(50, 2))
    people = np.where(np.arange(50) < 10, 1.0, np.nan)
    assert "20 items" in str(search(judges, people, np.ones(2), rng))
    assert "the same score" in str(search(judges, np.ones(50), np.ones(2), rng))
