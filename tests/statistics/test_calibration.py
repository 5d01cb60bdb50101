"""Calibrations mend what they can, are judged on items they did not see, and say what they are worth."""

import numpy as np
import pytest

from dicast.app.analysis.calibration import calibrated_mean, cross_fitted, gain, learn, map_errors
from dicast.app.analysis.estimates import Unknown


def too_kind(rng, items=600):
    people = rng.normal(3, 1, items)
    return people, np.round(1 + 4 / (1 + np.exp(-(people - 2) - rng.normal(0, 0.4, items))), 1)


@pytest.mark.parametrize("method", ["isotonic", "ordinal", "linear"])
def test_a_crooked_judge_is_straightened_on_items_the_map_did_not_see(method):
    rng = np.random.default_rng(0)
    people, judge = too_kind(rng)
    some = np.where(rng.random(600) < 0.5, people, np.nan)
    mended = cross_fitted(judge, some, method, rng)
    rated = ~np.isnan(some)
    for part in (rated, ~rated):
        assert np.abs(mended - people)[part].mean() < 0.75 * np.abs(judge - people)[part].mean()


def test_cross_fitting_finds_nothing_in_noise():
    rng = np.random.default_rng(1)
    judge, people = rng.normal(size=300), rng.normal(size=300)
    seen = learn(judge, people, "ordinal").apply(judge)
    assert np.corrcoef(seen, people)[0, 1] > 0.99
    assert abs(np.corrcoef(cross_fitted(judge, people, "ordinal", rng), people)[0, 1]) < 0.15


def test_isotonic_never_falls_and_nothing_is_invented_beyond_what_was_seen():
    rng = np.random.default_rng(2)
    people, judge = too_kind(rng, 200)
    found = learn(judge, people, "isotonic")
    assert (np.diff(found.y) >= 0).all()
    line = learn(judge, people, "linear")
    assert line.apply(np.array([-100.0, 100.0])).tolist() == [line.y[0], line.y[-1]]
    slope, at_zero = np.polyfit(judge, people, 1)
    assert line.apply(np.array([3.0]))[0] == pytest.approx(3 * slope + at_zero)
    assert np.isnan(line.apply(np.array([np.nan]))[0])


def test_the_gain_is_measured_on_the_other_half():
    """The gain of maps that saw half of the items, told by what they do to very many others."""
    rng = np.random.default_rng(3)
    others, scores = too_kind(rng, 50_000)
    held = 0
    for _ in range(100):
        people, judge = too_kind(rng, 200)
        half = learn(judge[:100], people[:100], "isotonic")
        truth = ((scores - others) ** 2 - (half.apply(scores) - others) ** 2).mean()
        found = gain(judge, people, "isotonic", rng)
        assert found.calibrated < found.raw
        held += found.fall.holds(truth)
    assert held >= 88


def test_nothing_is_gained_where_the_judge_is_right():
    rng = np.random.default_rng(4)
    quality = rng.normal(3, 1, 400)
    judge = np.clip(np.round(quality), 1, 5)
    found = gain(judge, judge + rng.normal(0, 0.5, 400), "ordinal", rng)
    assert found.fall.value < 0.02 and found.fall.low < 0


def test_what_cannot_be_learned():
    few = learn(np.arange(5.0), np.arange(5.0), "linear")
    assert isinstance(few, Unknown) and "10 rated items" in few.reason
    same = cross_fitted(np.full(50, 3.0), np.arange(50.0), "isotonic", np.random.default_rng(0))
    assert isinstance(same, Unknown) and "same score" in same.reason


@pytest.mark.parametrize("method", ["isotonic", "ordinal", "linear"])
def test_a_calibrated_mean_knows_that_its_map_errs(method):
    """It is people's mean of items like those rated; in the large: lab.statistics.populations."""
    held, taken = [], []
    for run in range(40):
        rng = np.random.default_rng((5, run))
        people, judge = too_kind(rng, 60)
        learned = learn(judge, people, method)
        _, later = too_kind(rng, 4000)
        errors = map_errors(judge, people, learned, rng)
        held.append(calibrated_mean(later, learned, errors).holds(3.0))
        taken.append(calibrated_mean(later, learned, None).holds(3.0))
    assert sum(held) >= 35 and sum(taken) <= 26


def test_the_points_of_a_line_err_as_least_squares_says():
    rng = np.random.default_rng(8)
    judge = rng.normal(3, 1, 400)
    people = 1 + 0.5 * judge + rng.normal(0, 0.5, 400)
    learned = learn(judge, people, "linear")
    factors = map_errors(judge, people, learned, rng)
    errors = np.sqrt((factors**2).sum(axis=1))
    apart = np.array(learned.x) - judge.mean()
    theory = 0.5 * np.sqrt(1 / 400 + apart**2 / ((judge - judge.mean()) ** 2).sum())
    assert errors == pytest.approx(theory, rel=0.25) and factors.shape == (2, 2)
