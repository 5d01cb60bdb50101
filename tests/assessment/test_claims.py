"""All claims of a report are corrected together, and keep their places."""

from __future__ import annotations

import numpy as np
import pytest

from dicast.app.analysis.assess import assess, correct_claims
from dicast.app.analysis.groups import holm
from dicast.app.analysis.raters import bias_p
from dicast.app.analysis.scores import DimensionScores, JobScores, Labels
from dicast.app.domain.judge_statistics import DimensionStatistics
from lab.statistics import claims
from lab.statistics.simulated import RatingWorld
from tests.assessment.test_assess import dimension, drawn


def p_values(dimensions: list[DimensionStatistics]) -> list[float]:
    found = []
    for of in dimensions:
        found += [rater.bias_p for rater in of.voices]
        for group in of.groups:
            found += [pair.p for pair in (*group.people_differences, *group.differences)]
            found += [p for rater in group.agreement for p in (rater.pearson_p, rater.bias_p)]
        found += [probe.p for probe in of.probes]
        found.append(of.leader_p)
    return [p for p in found if p is not None]


def test_claims_of_all_dimensions_and_judges_are_one_family() -> None:
    scores, people = drawn(RatingWorld(bias=(0.0, 0.1, -0.1)), 400, 150)
    rng = np.random.default_rng(1)
    of = DimensionScores(dimension(), scores, people)
    other = DimensionScores(dimension().model_copy(update={"id": "other"}), scores[::-1].copy(), people)
    labels = {"system": Labels(("a", "b", "c"), rng.integers(0, 3, 400))}
    probes = {"verbosity": rng.uniform(50, 500, 400)}
    found = assess(JobScores(400, ("j0", "j1", "j2"), (of, other), labels, probes=probes))
    corrected = p_values(found.dimensions)
    assert found.claims == len(corrected) == 2 * (4 + 3 + 3 + 2 * 4 + 4 + 1)
    assert min(corrected) > 0, "no p-value is lost"
    again, count = correct_claims(found.dimensions)
    assert count == found.claims
    assert p_values(again) == pytest.approx(holm(np.array(corrected)).tolist())


def test_the_p_value_of_a_bias_goes_with_its_interval() -> None:
    """At the edge of significance the two agree: the interval is a bootstrap one, the p-value Student's."""
    scores, people = drawn(RatingWorld(bias=(0.0, 0.12, -0.1)), 300, 200, seed=4)
    rated = scores[people.rated]
    p = bias_p(rated[:, 0, 0], people.scores)
    of = assess(JobScores(300, ("j0",), (DimensionScores(dimension(), scores[:, :1], people),))).dimensions[0]
    bias = of.voices[0].bias
    assert bias.low is not None and bias.high is not None and p is not None
    assert (p < 0.05) == (not bias.low <= 0 <= bias.high) and of.voices[0].bias_p == pytest.approx(p)


def test_a_report_of_nothing_but_chance_rarely_claims_anything() -> None:
    """5 % of 25 reports are 1: more than 6 once in a thousand times. Without one family most of them do."""
    found = [claims.report(np.random.default_rng((3, run))) for run in range(25)]
    assert sum(after for after, _, _ in found) <= 6
    assert sum(before for _, before, _ in found) >= 12


def test_a_bias_without_spread_or_of_few_items_has_no_p_value() -> None:
    people = np.array([[1.0], [2.0], [3.0], [4.0], [5.0]])
    assert bias_p(people[:, 0] + 1, people) is None
    assert bias_p(np.arange(4.0), people[:4]) is None
    noisy = bias_p(np.array([2.0, 2.0, 4.0, 5.0, 5.0]), people)
    assert noisy is not None and 0 < noisy < 1
