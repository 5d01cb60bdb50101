"""Prediction-powered inference against the authors' library, the theory, and simulated judges and people."""

import numpy as np
import pytest

from dicast.app.analysis.estimates import Estimate, Unknown
from dicast.app.analysis.means import mean
from dicast.app.analysis.powered import ALL_RATED, powered_difference, powered_mean, powered_share, powered_win_rate
from dicast.app.analysis.sampling import draw_sample, draw_stratified, draw_weighted


def rated_some(rng, items, rated, correlation, bias=0.0):
    """Judges and people of unit variance with this correlation; people rate `rated` random items."""
    people = rng.normal(3, 1, items)
    judges = bias + 3 + correlation * (people - 3) + np.sqrt(1 - correlation**2) * rng.normal(size=items)
    seen = np.full(items, np.nan)
    chosen = draw_sample(items, rated, rng).chosen
    seen[chosen] = people[chosen]
    return judges, seen, people


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
def test_value_and_interval_are_the_librarys(seed, weight):
    ppi_py = pytest.importorskip("ppi_py", reason="pip install -e .[references]")

    judges, people, _ = rated_some(np.random.default_rng(seed), 5000, 1000, 0.7, bias=0.3)
    rated = ~np.isnan(people)
    # The library weighs the judges' mean of the items people left out, this one their mean of all.
    parts = people[rated], judges[rated], judges[~rated]
    mine = powered_mean(judges, people, weight=weight / np.mean(~rated)).both
    assert isinstance(mine, Estimate)
    assert mine.value == pytest.approx(float(np.squeeze(ppi_py.ppi_mean_pointestimate(*parts, lam=weight))), abs=1e-9)
    low, high = (float(np.squeeze(end)) for end in ppi_py.ppi_mean_ci(*parts, alpha=0.05, lam=weight))
    assert mine.width == pytest.approx(high - low, rel=0.02)


def test_the_tuned_weight_is_the_librarys():
    ppi_py = pytest.importorskip("ppi_py", reason="pip install -e .[references]")

    judges, people, _ = rated_some(np.random.default_rng(5), 5000, 1000, 0.7, bias=0.3)
    rated = ~np.isnan(people)
    second = float(np.squeeze(ppi_py.ppi_mean_pointestimate(people[rated], judges[rated], judges[~rated])))
    mine = powered_mean(judges, people).both
    assert isinstance(mine, Estimate)
    assert mine.value == pytest.approx(second, abs=0.02 * mine.width)


@pytest.mark.parametrize("correlation, theory, most", [(0.7, 0.77, 0.80), (0.9, 0.57, 0.60)])
def test_the_interval_is_as_narrow_as_theory_says(correlation, theory, most):
    rng = np.random.default_rng(1)
    ratios, saved = [], []
    for _ in range(100):
        judges, people, _ = rated_some(rng, 1200, 200, correlation, bias=-0.5)
        found = powered_mean(judges, people)
        ratios.append(found.both.width / found.people_alone.width)
        saved.append(found.saved)
    assert np.median(ratios) == pytest.approx(theory, abs=0.02)
    assert np.median(ratios) <= most
    assert np.median(saved) == pytest.approx(1 / theory**2, rel=0.06)


def test_useless_judges_do_no_harm():
    judges, people, _ = rated_some(np.random.default_rng(2), 1200, 200, 0.0)
    found = powered_mean(judges, people)
    assert found.both.width <= 1.02 * found.people_alone.width
    against = powered_mean(6 - rated_some(np.random.default_rng(2), 1200, 200, 0.8)[0], people)
    assert against.judges_weight == 0
    assert against.both.value == pytest.approx(against.people_alone.value)


def test_judges_on_another_scale_help_as_much():
    judges, people, _ = rated_some(np.random.default_rng(3), 1200, 200, 0.8)
    plain, percent = powered_mean(judges, people), powered_mean(100 * judges - 50, people)
    assert percent.both.value == pytest.approx(plain.both.value)
    assert percent.both.width == pytest.approx(plain.both.width)


@pytest.mark.parametrize("way", ["uniform", "stratified", "weighted"])
def test_a_sample_with_known_probabilities_is_unbiased(way):
    """People rate more where judges disagree, and there scores are low: the plain mean is off, this one is not."""
    rng = np.random.default_rng(4)
    errors, naive, held = [], [], []
    for _ in range(300):
        hard = rng.random(1000) < 0.3
        truth = np.where(hard, 2.0, 4.0) + rng.normal(0, 0.5, 1000)
        judges = truth + rng.normal(0, np.where(hard, 0.8, 0.2))
        sample = {
            "uniform": lambda: draw_sample(1000, 150, rng),
            "stratified": lambda: draw_stratified(np.where(rng.random(1000) < 0.5, "x", "y"), 150, rng),
            "weighted": lambda spread=0.3 + 1.2 * hard: draw_weighted(spread, 150, rng),
        }[way]()
        people = np.full(1000, np.nan)
        people[sample.chosen] = truth[sample.chosen]
        found = powered_mean(judges, people, probabilities=sample.probabilities)
        errors.append(found.both.value - 3.4)
        naive.append(np.nanmean(people) - 3.4)
        held.append(found.both.holds(3.4))
    assert abs(np.mean(errors)) < 4 * np.std(errors) / np.sqrt(300)
    assert np.mean(held) > 0.92
    if way == "weighted":
        assert np.mean(naive) < -0.3


def test_differences_shares_and_win_rates():
    rng = np.random.default_rng(6)
    judges, people, truth = rated_some(rng, 2000, 400, 0.8)
    better = powered_difference((judges + 0.5, judges), (people + 0.3, people), paired=False)
    assert better.both.holds(0.3)
    paired = powered_difference(
        (judges + rng.normal(0.5, 0.1, 2000), judges), (people + rng.normal(0.3, 0.1, 2000), people), paired=True
    )
    assert paired.both.holds(0.3)
    assert paired.both.width < 0.2 * better.both.width
    share = powered_share(judges - 1, people, 4.0)
    assert share.both.holds((truth >= 4).mean())
    assert share.both.width < share.people_alone.width
    wins = powered_win_rate(np.sign(judges - 3) / 2 + 0.5, np.sign(people - 3) / 2 + 0.5)
    assert wins.both.holds(0.5)
    assert 0 <= wins.both.low < wins.both.high <= 1


def test_what_cannot_be_said():
    judges = np.arange(50.0)
    nobody = np.full(50, np.nan)
    alike = np.where(np.arange(50) < 20, 4.0, np.nan)
    few = np.where(np.arange(50) < 2, np.arange(50.0), np.nan)
    for people, reason in ((nobody, "people rated 0"), (alike, "the same score"), (few, "people rated 2")):
        found = powered_mean(judges, people)
        assert isinstance(found.both, Unknown) and reason in found.both.reason
        assert isinstance(found.saved, Unknown)
        assert isinstance(powered_difference((judges, judges), (people, people), paired=False).both, Unknown)
    unlikely = powered_mean(judges, alike + np.arange(50), probabilities=np.zeros(50))
    assert "no known probability" in str(unlikely.both)
    lone = np.where(np.arange(50) < 8, np.arange(50.0), np.nan)
    weighty = powered_mean(judges, lone, probabilities=np.where(np.arange(50) < 1, 1e-6, 1.0))
    assert "nearly all the weight" in str(weighty.both)
    constant = powered_mean(np.ones(50), np.where(np.arange(50) < 20, np.arange(50.0), np.nan))
    assert constant.judges_weight == 0
    assert isinstance(constant.both, Estimate)


def test_a_mean_takes_clusters_and_bounds():
    rng = np.random.default_rng(8)
    by_item = np.repeat(rng.normal(size=100), 5)
    loose, strict = mean(by_item), mean(by_item, clusters=np.repeat(np.arange(100), 5))
    assert strict.width == pytest.approx(loose.width * np.sqrt(5), rel=0.05)
    assert strict.items == 100
    share = mean((rng.random(100) < 0.97).astype(float), bounds=(0.0, 1.0))
    assert 0 < share.low < share.high < 1
    assert "no scores" in str(mean(np.array([np.nan])))
    assert "all 20 items say the same (4)" in str(mean(np.full(20, 4.0)))
    assert "needs 5 items" in str(mean(np.arange(2.0)))


@pytest.mark.parametrize("size", [1, 7, 60, 100])
def test_samples_have_their_size_and_their_probabilities(size):
    rng = np.random.default_rng(9)
    strata, spread = np.repeat(["big", "small"], [90, 10]), np.r_[np.full(95, 0.1), np.full(5, 50.0)]
    ways = [lambda: draw_sample(100, size, rng), lambda: draw_weighted(spread, size, rng)]
    if size > 1:
        ways.append(lambda: draw_stratified(strata, size, rng))
    for draw in ways:
        drawn = np.zeros(100)
        for _ in range(2000):
            sample = draw()
            assert len(sample.chosen) == size == len(set(sample.chosen))
            drawn[sample.chosen] += 1
        assert sample.probabilities.sum() == pytest.approx(size)
        assert (sample.probabilities > 0).all()
        np.testing.assert_allclose(drawn / 2000, sample.probabilities, atol=0.06)


def test_samples_that_cannot_be_drawn():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="not 11"):
        draw_sample(10, 11, rng)
    with pytest.raises(ValueError, match="3 strata"):
        draw_stratified(["a", "b", "c"], 2, rng)
    with pytest.raises(ValueError, match="finite"):
        draw_weighted(np.array([1.0, np.nan]), 1, rng)


@pytest.mark.parametrize("seed", range(20))
def test_judges_change_nothing_where_people_rated_every_item(seed):
    rng = np.random.default_rng(seed)
    judges, people = rng.integers(1, 6, 200).astype(float), rng.integers(1, 6, (200, 3)).mean(axis=1)
    found = powered_mean(judges, people, bounds=(1.0, 5.0))
    assert isinstance(found.both, Estimate) and isinstance(found.people_alone, Estimate)
    assert found.judges_weight == 0 and found.saved == Unknown(ALL_RATED)
    assert found.both.value == pytest.approx(people.mean(), abs=1e-12)
    assert (found.both.low, found.both.high) == pytest.approx((found.people_alone.low, found.people_alone.high))
