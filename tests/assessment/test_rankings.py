"""Lists that people and judges order: Kendall's tau by list."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dicast.app.analysis.assess import assess
from dicast.app.analysis.scores import DimensionScores, JobScores, Labels, People
from tests.assessment.test_every_statistic import held
from tests.assessment.test_position import CHOICE

LISTS, CANDIDATES = 40, 5
PAIRS = list(combinations(range(CANDIDATES), 2))


def preferences(worth: Any) -> Any:
    """Of all pairs of all lists, list by list."""
    return np.concatenate([[np.sign(row[a] - row[b]) for a, b in PAIRS] for row in worth])


def a_ranked_job(noise: tuple[float, ...], raters: int = 2) -> tuple[JobScores, Any, Any]:
    rng = np.random.default_rng(1)
    worth = rng.normal(size=(LISTS, CANDIDATES))
    judged = [worth + rng.normal(0, one, worth.shape) for one in noise]
    rated = [worth + rng.normal(0, 0.5, worth.shape) for _ in range(raters)]
    scores = np.stack([preferences(one) for one in judged], axis=1)[:, :, None]
    people = People(
        np.arange(len(scores)), tuple(f"p{n}" for n in range(raters)), np.stack([preferences(r) for r in rated], axis=1)
    )
    of = DimensionScores(CHOICE, scores, people)
    names = tuple("vwxyz")
    sides = tuple(Labels(names, np.tile([pair[side] for pair in PAIRS], LISTS)) for side in (0, 1))
    lists = np.repeat(np.arange(LISTS), len(PAIRS))
    job = JobScores(len(scores), tuple(f"j{n}" for n in range(len(noise))), (of,), sides=sides, lists=lists)  # type: ignore[arg-type]
    return job, judged, rated


def test_tau_is_the_librarys_list_by_list_and_better_judges_have_more_of_it() -> None:
    job, judged, rated = a_ranked_job((0.3, 1.5))
    found = assess(job)
    held(found)
    of = found.dimensions[0]
    assert of.preferences is not None
    good, bad, panel, person = of.preferences.rankings
    assert [one.name for one in of.preferences.rankings] == ["j0", "j1", "panel", "a person"]
    for one, worth in ((good, judged[0]), (bad, judged[1])):
        each = [[stats.kendalltau(worth[n], who[n]).statistic for who in rated] for n in range(LISTS)]
        assert one.tau.value == pytest.approx(np.mean(each), abs=1e-9) and one.tau.items == one.lists == LISTS
        alike = np.mean([[preferences(worth) == preferences(who)] for who in rated])
        assert one.agreeing.value == pytest.approx(alike)
    among = np.mean([stats.kendalltau(rated[0][n], rated[1][n]).statistic for n in range(LISTS)])
    assert person.tau.value == pytest.approx(among)
    assert good.tau.low > bad.tau.high and panel.tau.is_known  # type: ignore[operator]
    assert any("orders the lists as people do with a Kendall's tau of" in line for line in of.summary)


def test_ties_and_lists_that_nobody_rated_are_left_out() -> None:
    job, _, _ = a_ranked_job((0.3,), raters=1)
    (of,) = job.dimensions
    rated = of.people.rated[: 20 * len(PAIRS)]
    tied = of.people.scores[: len(rated)].copy()
    tied[: len(PAIRS)] = 0
    some = DimensionScores(CHOICE, of.scores, People(rated, of.people.raters, tied))
    found = assess(JobScores(job.items, job.judges, (some,), sides=job.sides, lists=job.lists))
    held(found)
    preferred = found.dimensions[0].preferences
    assert preferred is not None
    (one,) = preferred.rankings
    assert (one.name, one.lists, one.pairs) == ("j0", 19, 19 * len(PAIRS))
