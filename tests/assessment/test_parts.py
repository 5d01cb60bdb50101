"""Parts of the report's statistics by themselves: learned panels, and what is left of a question that ended a job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dicast.app.analysis import assess
from dicast.app.analysis import scores as combined
from dicast.app.analysis.scores import DimensionScores, JobScores, People, StoppedJob
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import GroupDifference, GroupStatistics
from dicast.app.domain.panel import PanelRule
from dicast.app.domain.question import JobAnswer, Question
from dicast.app.domain.report import ReportDimension
from tests.assessment.test_sentences import fig, voice

PLAIN = ReportDimension(id="clear", scale_min=1, scale_max=5)


def rated_job(rated: int, **panel: Any) -> tuple[JobScores, DimensionScores]:
    """80 items in two halves, of which people have rated so many; the second judge is noise."""
    rng = np.random.default_rng(0)
    truth = rng.integers(1, 6, 80).astype(float)
    judges = np.stack([np.clip(truth + rng.integers(-1, 2, 80), 1, 5), rng.integers(1, 6, 80)], axis=1)[:, :, None]
    of = ReportDimension(id="clear", scale_min=1, scale_max=5, panel=PanelRule.model_validate(panel))
    people = People(np.arange(rated), ("ada",), truth[:rated, None])
    scores = DimensionScores(of, judges.astype(float), people)
    return JobScores(80, ("a", "b"), (scores,), halves=np.arange(80) % 2), scores


def test_weights_are_learned_from_twenty_rated_items_in_each_half_and_said_to_be_equal_from_fewer() -> None:
    weighted = {"combine": "weighted", "weights": "learned"}
    few = combined._learn(*rated_job(39, **weighted)).spec.learned
    assert few is not None and (few.items, few.weights, few.halves) == (39, {"a": 0.5, "b": 0.5}, [])
    assert few.reason is not None and few.reason.endswith("and there are 20 and 19")
    enough = combined._learn(*rated_job(40, **weighted)).spec.learned
    assert enough is not None and enough.reason is None and len(enough.halves) == 2
    assert enough.weights == pytest.approx({n: (enough.halves[0][n] + enough.halves[1][n]) / 2 for n in ("a", "b")})
    assert enough.weights["a"] > 0.8 and all(sum(of.values()) == pytest.approx(1) for of in enough.halves)
    again = rated_job(40, **weighted)
    kept = combined._learn(again[0], combined._learn(*again))
    assert kept.spec.learned == enough, "what was learned is not learned anew"


def test_rated_items_are_combined_by_what_the_other_half_has_taught() -> None:
    job, of = rated_job(60, combine="weighted", weights="learned")
    learned = combined._learn(job, of)
    found, panel = learned.spec.learned, combined.panel_scores(job, learned)
    assert found is not None
    for item in range(80):
        weights = found.halves[1 - item % 2] if item < 60 else found.weights
        assert panel[item] == pytest.approx(of.judges[item] @ np.array([weights["a"], weights["b"]]))


def test_the_likeliest_label_is_told_of_the_lowest_one_too_and_of_no_item_without_any() -> None:
    rng = np.random.default_rng(1)
    truth = rng.integers(1, 4, 200).astype(float)
    judges = np.repeat(truth[:, None], 3, axis=1)
    judges[:3] = np.nan
    dimension = ReportDimension(
        id="kind", scale_min=1, scale_max=3, labels=["x", "y", "z"], ordered=False,
        panel=PanelRule(combine="dawid_skene"),
    )  # fmt: skip
    of = DimensionScores(dimension, judges[:, :, None])
    job = JobScores(200, ("a", "b", "c"), (of,))
    found = combined.panel_scores(job, combined._learn(job, of))
    np.testing.assert_array_equal(found[3:], truth[3:])
    assert 1.0 in found[3:] and np.isnan(found[:3]).all()


# ------------------------------------------------------------------------------------------------- what ended the job
def ended(of: ReportDimension, dimension: str = "clear", **asked: Any) -> tuple[JobScores, DimensionScores]:
    answer = JobAnswer(
        question="?", state="yes", value=3.4, low=3.1, high=3.7, confidence=0.99, items=9, missing=0, population=90,
        asked=Question.model_validate({"dimension": dimension, **asked}),
    )  # fmt: skip
    scores = DimensionScores(of, np.ones((9, 1, 1)))
    return JobScores(9, ("a",), (scores,), stopped=StoppedJob(answer, 90)), scores


KNOWN = Figure(
    value=3.4, low=3.1, high=3.7, confidence=0.99, items=9, method="confidence sequence by betting",
)  # fmt: skip


@pytest.mark.parametrize("asked, is_told", [
    ({"mean_at_least": 3}, True), ({"width": 0.5}, True),
    ({"share": {"at_least_score": 3, "share_at_least": 0.5}}, False),
    ({"mean_at_least": 3, "dimension": "other"}, False),
])  # fmt: skip
def test_the_panels_mean_is_the_questions_own_where_it_was_asked(asked: dict[str, Any], is_told: bool) -> None:
    voices = [voice("a", mean=fig(1, 0, 2)), voice("panel", "panel", mean=fig(2, 1, 3))]
    first, panel = assess.with_sequence(*ended(PLAIN, **asked), voices)
    assert first == voices[0]
    assert panel.mean == (KNOWN if is_told else fig(2, 1, 3))
    job, of = ended(PLAIN, mean_at_least=3)
    assert assess.with_sequence(replace(job, stopped=None), of, voices) == voices
    passed = PLAIN.model_copy(update={"panel": PanelRule(threshold=3)})
    assert assess.with_sequence(*ended(passed, mean_at_least=3), voices) == voices, "it was about verdicts"


@pytest.mark.parametrize("missing", ["value", "low", "high"])
def test_an_answer_without_all_of_its_figures_is_not_known(missing: str) -> None:
    job, of = ended(PLAIN, mean_at_least=3)
    assert job.stopped is not None
    answer = job.stopped.job_answer.model_copy(update={missing: None})
    job = replace(job, stopped=StoppedJob(answer, 90))
    (panel,) = assess.with_sequence(job, of, [voice("panel", "panel")])
    assert panel.mean == Figure.unknown("nothing that the question is about has a score")


def test_the_difference_that_was_asked_is_told_either_way_round() -> None:
    apart = [
        GroupDifference(first=first, second=second, difference=fig(9, 8, 10), p=0.5)
        for first, second in (("x", "y"), ("y", "x"), ("x", "z"))
    ]
    groups = GroupStatistics(by="model", differences=apart)
    job, of = ended(PLAIN, difference={"by": "model", "of": ["x", "y"]})
    one, turned, other = assess.with_difference(job, of, groups).differences
    assert (one.difference, one.p) == (KNOWN, None)
    assert (turned.difference.value, turned.difference.low, turned.difference.high) == (-3.4, -3.7, -3.1)
    assert (turned.first, turned.second, turned.p) == ("y", "x", None)
    assert other == apart[2]
    elsewhere = groups.model_copy(update={"by": "day"})
    assert assess.with_difference(job, of, elsewhere) == elsewhere
