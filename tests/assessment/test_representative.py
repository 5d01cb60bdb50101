"""Ratings that are no random sample are noticed by what judges say of rated and unrated items."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dicast.app.analysis.assess import assess, sample_checks
from dicast.app.analysis.sampling import draw_weighted
from dicast.app.analysis.scores import DimensionScores, JobScores, People
from dicast.app.domain.judge_statistics import SampleCheck
from lab.statistics import representative, simulated
from lab.statistics.representative import CASES, Case
from lab.statistics.simulated import RatingWorld
from tests.assessment.test_assess import a_job


@pytest.mark.parametrize("case", CASES)
def test_chosen_items_are_noticed_and_random_ones_are_not(case: Case) -> None:
    """Of 40 random samples 5 % are accused by chance: more than 7 once in a thousand times."""
    found = sum(representative.noticed(case, np.random.default_rng((2, run))) for run in range(40))
    assert found <= 7 if case == "random" else found >= 38


def a_job_of(chosen: np.ndarray, seed: int = 1) -> tuple[JobScores, DimensionScores, np.ndarray]:
    drawn = simulated.draw(RatingWorld(), 500, np.random.default_rng(seed))
    job = a_job(drawn.judges[..., None], People(chosen, ("ada", "ben", "cleo"), drawn.people[chosen]))
    return job, job.dimensions[0], drawn.judges.mean(axis=1)


def test_the_best_items_are_told_in_the_first_sentence() -> None:
    _, _, panel = a_job_of(np.arange(50))
    job, _, _ = a_job_of(np.sort(np.argsort(-panel)[:50]))
    found = assess(job).dimensions[0]
    assert found.summary[0].startswith("The rated items are no random sample of all items: the judges give them ")
    assert found.sample_checks[0].p < 1e-6
    fair, _, _ = a_job_of(np.sort(np.random.default_rng(3).choice(500, 50, replace=False)))
    assert assess(fair).dimensions[0].summary[0].startswith("These raters' mean of all items")


def test_the_difference_is_that_of_rated_and_unrated_items() -> None:
    chosen = np.arange(60)
    job, of, panel = a_job_of(chosen)
    score = sample_checks(job, of, panel)[0]
    assert score.difference is not None
    assert score.difference.value == pytest.approx(panel[:60].mean() - panel[60:].mean())


@pytest.mark.parametrize("rated", [9, 491])
def test_too_few_on_either_side_are_not_tested(rated: int) -> None:
    assert sample_checks(*a_job_of(np.arange(rated))) == []
    assert len(sample_checks(*a_job_of(np.arange(10)))) == 3 == len(sample_checks(*a_job_of(np.arange(490))))


def test_items_drawn_with_known_probabilities_are_weighed() -> None:
    """Disputed items were likelier to be drawn: without the probabilities they would be noticed."""
    alarms = {True: 0, False: 0}
    for seed in range(30):
        rng = np.random.default_rng(seed)
        drawn = simulated.draw(RatingWorld(), 500, rng)
        sample = draw_weighted(drawn.judges.std(axis=1), 100, rng)
        for known in alarms:
            chances = sample.probabilities[sample.chosen] if known else None
            people = People(sample.chosen, ("a", "b", "c"), drawn.people[sample.chosen], chances)
            job = a_job(drawn.judges[..., None], people)
            checks = sample_checks(job, job.dimensions[0], drawn.judges.mean(axis=1))
            alarms[known] += min(check.p for check in checks) < 0.01
    assert alarms[True] <= 4 and alarms[False] >= 28


def test_items_drawn_by_cluster_are_no_alarm() -> None:
    rng, alarms = np.random.default_rng(5), 0
    for _ in range(60):
        topic = np.repeat(np.arange(40), 10)
        judges = np.clip(3 + rng.normal(0, 1, 40)[topic, None] + rng.normal(0, 0.5, (400, 2)), 1, 5)
        chosen = np.flatnonzero(np.isin(topic, rng.choice(40, 10, replace=False)))
        job = a_job(judges[..., None], People(chosen, ("ada",), judges[chosen, :1]))
        clustered = replace(job, cluster=("topic", topic))
        checks = sample_checks(clustered, job.dimensions[0], judges.mean(axis=1))
        alarms += next(check.p for check in checks if check.name == "score") < 0.05
    assert alarms <= 9, "5 % of 60 are 3: more than 9 once in a thousand times"


def test_a_check_survives_json() -> None:
    job, _, _ = a_job_of(np.arange(60))
    found = assess(job).dimensions[0].sample_checks
    assert found and [SampleCheck.model_validate_json(check.model_dump_json()) for check in found] == found
