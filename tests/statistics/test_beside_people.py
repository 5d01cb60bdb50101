"""What a judge adds beside people: planted effects are found, and a narrow scale is no effect."""

from __future__ import annotations

import numpy as np
import pytest

from dicast.app.analysis.biases import BOUNDED, METHOD, effect_beside_people
from dicast.app.analysis.estimates import Estimate, Unknown
from lab.statistics import length


@pytest.mark.parametrize("slope", length.SLOPES)
def test_who_uses_less_of_the_scale_is_not_accused_and_who_favours_length_is(slope: float) -> None:
    """5 % of 60 runs are accused by chance: more than 9 once in a thousand times."""
    rows = {row.planted: row for row in length.study_case(length.LengthCase(3), 60, 300, 1) if row.slope == slope}
    assert rows[0.0].found <= 9 / 60 and rows[0.0].held >= 0.85
    assert rows[0.5].found >= 0.95 and rows[0.5].held >= 0.85
    assert slope > 0.5 or rows[0.0].plain > 0.9, "the plain slope takes the scale for a bias"


def test_with_exact_people_it_is_least_squares_with_people_as_a_covariate() -> None:
    rng = np.random.default_rng(1)
    x, quality = rng.normal(size=(2, 200))
    judge = 1 + 0.4 * (quality + x) + 0.2 * x + rng.normal(0, 0.3, 200)
    people = np.repeat((quality + x)[:, None], 2, axis=1)
    found, p = effect_beside_people(x, judge, people)
    design = np.column_stack([np.ones(200), x, quality + x])
    expected = np.linalg.lstsq(design, judge, rcond=None)[0][1]
    assert isinstance(found, Estimate) and found.method == METHOD
    assert found.value == pytest.approx(expected)
    assert p is not None and p < 1e-6


def test_raters_strictness_is_no_noise() -> None:
    rng = np.random.default_rng(2)
    x, judge, people = length.drawn(0.5, 0.0, length.LengthCase(3), 300, rng)
    plain, _ = effect_beside_people(x, judge, people)
    strict, _ = effect_beside_people(x, judge, people + np.array([0.0, 3.0, -2.0]))
    assert isinstance(plain, Estimate) and isinstance(strict, Estimate)
    assert (strict.value, strict.low) == pytest.approx((plain.value, plain.low), abs=1e-9)


def test_one_rater_gives_the_bounds_that_two_regressions_leave() -> None:
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(40):
        x, judge, people = length.drawn(0.5, 0.3, length.LengthCase(1), 200, rng)
        found, p = effect_beside_people(x, judge, people)
        assert isinstance(found, Estimate) and found.method == BOUNDED and p is not None
        held += found.holds(0.3)
    assert held >= 38


def test_with_one_rater_some_texts_that_a_second_rates_are_enough() -> None:
    rows = {(row.planted, row.slope): row for row in length.study_case(length.LengthCase(1, twice=30), 60, 300, 2)}
    for slope in length.SLOPES:
        assert rows[0.0, slope].found <= 9 / 60 and rows[0.5, slope].found >= 0.7
        assert rows[0.0, slope].held >= 0.85 and rows[0.5, slope].held >= 0.85


def test_what_cannot_be_said() -> None:
    rng = np.random.default_rng(4)
    x, judge = rng.normal(size=(2, 50))
    noise = rng.normal(size=(50, 2))
    for people, reason in (
        (noise, "people agree too little"),
        (np.repeat(x[:, None], 2, axis=1), "go with it alone"),
        (np.full((50, 2), 3.0), "all the same"),
    ):
        found, p = effect_beside_people(x, judge, people)
        assert isinstance(found, Unknown) and reason in found.reason and p is None
