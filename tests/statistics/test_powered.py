"""Prediction-powered inference against the authors' library, the theory, and simulated judges and people."""

import numpy as np
import pytest
import scipy.stats
from scipy import stats

from dicast.app.analysis.estimates import Estimate, Unknown
from dicast.app.analysis.means import mean
from dicast.app.analysis.powered import (
    ALL_RATED,
    powered_difference,
    powered_groups,
    powered_mean,
    powered_share,
    powered_win_rate,
)
from dicast.app.analysis.sampling import draw_sample, draw_stratified, draw_weighted
from lab.statistics import systems


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


def groups_of(judges, people, groups, clusters=None, **more):
    clusters = np.arange(len(judges)) if clusters is None else clusters
    return powered_groups(judges, people, groups, clusters, np.random.default_rng(0), **more)


def test_peoples_differences_of_systems_hold_also_where_judges_are_unfair():
    """The panel's own intervals, read as people's, do not. Coverage in the large: lab.statistics.systems."""
    rows = {(row.judges, row.whose): row for row in systems.study(40, 200, 1) if row.scale == "even"}
    for judges in systems.JUDGES:
        assert rows[judges, "people"].held >= 0.9 and rows[judges, "people"].wrong <= 0.02
    assert rows["unfair", "panel"].held < 0.6 and rows["unfair", "panel"].wrong > 0.3


def test_where_judges_know_nothing_groups_are_peoples_alone():
    """Then the difference is that of plain means of people's ratings, by Welch's t but for what a jackknife adds."""
    rng = np.random.default_rng(3)
    group, people = np.repeat(["a", "b"], [300, 200]), rng.normal(3, 1, 500)
    people[rng.random(500) < 0.7] = np.nan
    found = groups_of(np.full(500, 3.0), people, group).differences[0]
    a, b = (people[(group == name) & ~np.isnan(people)] for name in ("a", "b"))
    welch = stats.ttest_ind(a, b, equal_var=False)
    assert found.difference.value == pytest.approx(a.mean() - b.mean())
    assert found.uncorrected == pytest.approx(welch.pvalue, rel=0.02)
    low, high = welch.confidence_interval()
    assert (found.difference.low, found.difference.high) == pytest.approx((low, high), abs=0.01)


def test_judges_narrow_groups_and_correct_for_their_favourites():
    rng = np.random.default_rng(4)
    judges, people, truth = rated_some(rng, 2000, 400, 0.9)
    group = rng.integers(0, 2, 2000)
    biased = judges + 2.0 * group
    found, alone = groups_of(biased, people, group), groups_of(rng.normal(size=2000), people, group)
    true = truth[group == 0].mean() - truth[group == 1].mean()
    assert found.differences[0].difference.holds(true)
    assert found.differences[0].difference.width < 0.75 * alone.differences[0].difference.width
    assert found.means[0].value - found.means[1].value == pytest.approx(found.differences[0].difference.value)


def test_clusters_of_rated_items_widen_peoples_differences():
    rng = np.random.default_rng(5)
    topic = np.repeat(np.arange(60), 10)
    group, mood = topic % 2, rng.normal(size=60)[topic]
    people = 3 + mood + rng.normal(0, 0.3, 600)
    people[rng.random(600) < 0.5] = np.nan
    judges = 3 + rng.normal(size=600)
    loose, strict = groups_of(judges, people, group), groups_of(judges, people, group, topic)
    assert strict.differences[0].difference.width > 1.8 * loose.differences[0].difference.width


def test_groups_with_few_or_equal_ratings_are_unknown_and_the_others_are_not():
    rng = np.random.default_rng(6)
    group, people = np.repeat(["a", "b", "c", "d"], 50), rng.normal(size=200)
    people[50:] = np.nan
    people[50:59], people[100:120], people[150:170] = rng.normal(size=9), 4.0, rng.normal(size=20)
    found = groups_of(rng.normal(size=200), people, group)
    assert [isinstance(mean, Unknown) for mean in found.means] == [False, True, True, False]
    known = [(d.first, d.second) for d in found.differences if isinstance(d.difference, Estimate)]
    assert known == [("a", "d")] and found.ranks is None
    assert "rated 9 of its items" in str(found.means[1])


def test_groups_of_a_weighted_sample_are_weighed():
    rng = np.random.default_rng(7)
    held = []
    for _ in range(100):
        hard = rng.random(1000) < 0.3
        group = rng.integers(0, 2, 1000)
        truth = np.where(hard, 2.0, 4.0) + 0.5 * group * hard + rng.normal(0, 0.5, 1000)
        sample = draw_weighted(0.3 + 1.2 * hard, 200, rng)
        people = np.full(1000, np.nan)
        people[sample.chosen] = truth[sample.chosen]
        judges = truth + rng.normal(0, 0.5, 1000)
        found = groups_of(judges, people, group, probabilities=sample.probabilities)
        held.append(found.differences[0].difference.holds(-0.15))
    assert np.mean(held) > 0.88


def by_definition(judges, people, chances=None, weight=None):
    """Value, standard error, judges' weight and degrees of freedom, item by item."""
    usable = [i for i in range(len(judges)) if not np.isnan(judges[i])]
    rated = [i for i in usable if not np.isnan(people[i])]
    inverse = {i: 1 / (chances[i] if chances is not None else len(rated) / len(usable)) for i in rated}
    share = {i: inverse[i] / sum(inverse.values()) for i in rated}
    mean_f = sum(judges[i] for i in usable) / len(usable)
    rated_f, rated_y = (sum(share[i] * values[i] for i in rated) for values in (judges, people))
    spread_f = sum(share[i] * (judges[i] - rated_f) ** 2 for i in rated)

    def influences(weight, *, left_out):
        for i in usable:
            of_judges = weight * (judges[i] - mean_f) / len(usable)
            if i not in share:
                yield of_judges
                continue
            lever = share[i] * (1 + (judges[i] - rated_f) ** 2 / spread_f * (left_out == "both")) if left_out else 0.0
            residual = people[i] - rated_y - weight * (judges[i] - rated_f)
            yield of_judges + share[i] / (1 - min(lever, 0.9)) * residual

    def variance(weight):
        return sum(part**2 for part in influences(weight, left_out=""))

    chosen = weight
    if weight is None:
        second, first, _ = np.polyfit([0.0, 1.0, 2.0], [variance(w) for w in (0.0, 1.0, 2.0)], 2)
        chosen = max(0.0, -first / (2 * second))
    pieces = 1 / sum(part**2 for part in share.values())
    left_out = "both" if weight is None and chosen > 0 else "mean"
    squares = sum(part**2 for part in influences(chosen, left_out=left_out))
    value = chosen * mean_f + rated_y - chosen * rated_f
    return value, float(np.sqrt(squares * (pieces - 1) / pieces)), chosen, pieces - 1


@pytest.mark.parametrize("unlike", [False, True])
@pytest.mark.parametrize("weight", [None, 0.0, 0.7])
@pytest.mark.parametrize("correlation", [0.8, -0.8])
def test_value_weight_and_interval_are_those_of_the_definition(unlike, weight, correlation):
    judges, people, _ = rated_some(np.random.default_rng(7), 40, 14, correlation, bias=0.4)
    judges[[3, 17]] = np.nan
    chances = np.random.default_rng(8).uniform(0.2, 0.9, 40) if unlike else None
    found = powered_mean(judges, people, probabilities=chances, weight=weight)
    value, error, chosen, degrees = by_definition(judges, people, chances, weight)
    reach = scipy.stats.t.ppf(0.975, degrees) * error
    assert found.judges_weight == pytest.approx(chosen, abs=1e-9)
    assert (chosen > 0) == (weight != 0.0 and (weight is not None or correlation > 0))
    assert (found.both.value, found.both.low, found.both.high) == pytest.approx((value, value - reach, value + reach))
    alone = mean(people[~np.isnan(people) & ~np.isnan(judges)]) if not unlike else found.people_alone
    assert (found.people_alone.low, found.people_alone.high) == pytest.approx((alone.low, alone.high))
    rated = int((~np.isnan(people) & ~np.isnan(judges)).sum())
    assert (found.both.items, found.people_alone.items) == (rated, rated)
    half = (found.people_alone.high - found.people_alone.low) / 2 / scipy.stats.t.ppf(0.975, degrees)
    assert found.saved == pytest.approx((half / error) ** 2)


def test_the_difference_of_two_systems_is_that_of_two_means():
    rng = np.random.default_rng(9)
    sides = [rated_some(rng, 40, rated, 0.8) for rated in (12, 20)]
    parts = [by_definition(judges, people) for judges, people, _ in sides]
    found = powered_difference((sides[0][0], sides[1][0]), (sides[0][1], sides[1][1]), paired=False)
    error, degrees = np.hypot(parts[0][1], parts[1][1]), min(parts[0][3], parts[1][3])
    value, reach = parts[0][0] - parts[1][0], scipy.stats.t.ppf(0.975, degrees) * error
    assert (found.both.low, found.both.high) == pytest.approx((value - reach, value + reach))
    assert found.judges_weight == pytest.approx((parts[0][2] + parts[1][2]) / 2)
    assert found.both.items == 12
    chances = [np.full(40, rated / 40) for rated in (12, 20)]
    same = powered_difference(
        (sides[0][0], sides[1][0]), (sides[0][1], sides[1][1]), paired=False, probabilities=tuple(chances)
    )
    assert (same.both.low, same.both.high) == pytest.approx((found.both.low, found.both.high))
    everything = powered_difference((sides[0][0], sides[1][0]), (sides[0][2], sides[1][2]), paired=False)
    assert everything.saved == Unknown(ALL_RATED)
    some = powered_difference((sides[0][0], sides[1][0]), (sides[0][2], sides[1][1]), paired=False)
    assert isinstance(some.saved, float), "one of the two leaves something to be saved"


@pytest.mark.parametrize("worst, known", [(1.0, True), (1e-9, True), (0.0, False), (-0.1, False), (1.001, False)])
def test_a_probability_is_above_nought_and_at_most_one(worst, known):
    judges, people, _ = rated_some(np.random.default_rng(10), 40, 14, 0.8)
    chances = np.full(40, 0.5)
    chances[np.flatnonzero(~np.isnan(people))[0]] = worst
    assert ("no known probability" in str(powered_mean(judges, people, probabilities=chances).both)) != known
