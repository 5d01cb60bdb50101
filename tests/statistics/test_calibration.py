"""Calibrations mend what they can, are judged on items they did not see, and hold only for what they were made for."""

import json

import numpy as np
import pytest

from dicast.app.statistics.calibration import Binding, CalibrationMismatch, cross_fitted, from_dict, learn
from dicast.app.statistics.estimates import Unknown

MADE_FOR = Binding("judge-1", "model-1", "prompt-1", "rubric-1")


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


def test_it_is_kept_as_json_and_bound_to_what_it_was_made_for():
    people, judge = too_kind(np.random.default_rng(3), 100)
    found = learn(judge, people, "isotonic")
    kept = json.loads(json.dumps(found.as_dict(MADE_FOR)))
    assert from_dict(kept, MADE_FOR) == found
    with pytest.raises(CalibrationMismatch, match="another model, rubric") as caught:
        from_dict(kept, Binding("judge-1", "model-2", "prompt-1", "rubric-2"))
    assert caught.value.differing == ("model", "rubric")
    with pytest.raises(ValueError, match="no calibration of version 1"):
        from_dict({**kept, "version": 2}, MADE_FOR)


def test_what_cannot_be_learned():
    few = learn(np.arange(5.0), np.arange(5.0), "linear")
    assert isinstance(few, Unknown) and "10 rated items" in few.reason
    same = cross_fitted(np.full(50, 3.0), np.arange(50.0), "isotonic", np.random.default_rng(0))
    assert isinstance(same, Unknown) and "same score" in same.reason
