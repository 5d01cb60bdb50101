"""How several scores become one: as app/statistics does it, and only where it can be meant."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dicast.app.analysis.combining import COMBINATIONS, weighted_mean
from dicast.app.analysis.scores import DimensionScores, JobScores, People, panel_scores, with_learned_panels
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.panel import Combination, LearnedPanel, PanelRule, half_of
from dicast.app.domain.report import ReportDimension


@pytest.mark.parametrize("combine", COMBINATIONS)
@given(scores=st.lists(st.integers(1, 5), min_size=1, max_size=11))
def test_one_item_is_combined_as_arrays_of_them_are(combine: Any, scores: list[int]) -> None:
    by_judge = {f"j{n}": float(score) for n, score in enumerate(scores)}
    row = np.array([[float(score) for score in scores]])
    assert PanelRule(combine=combine).combined(by_judge) == pytest.approx(COMBINATIONS[combine](row)[0])


JUDGES = ("a", "b", "c", "d")
_SOME_WEIGHTS = st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=4, max_size=4).filter(any)
_CELLS = st.lists(st.none() | st.integers(1, 4), min_size=4, max_size=4)


def weights_by_judge(weights: list[float]) -> dict[str, float]:
    return dict(zip(JUDGES, weights, strict=True))


@st.composite
def a_rule(draw: st.DrawFn, combine: Combination) -> tuple[PanelRule, LearnedPanel | None]:
    """A panel's rule, and what it has learned if it learns."""
    if combine == "chief":
        return PanelRule(combine=combine, chief=draw(st.sampled_from(JUDGES))), None
    if combine != "weighted":
        return PanelRule(combine=combine), None
    weights = weights_by_judge(draw(_SOME_WEIGHTS))
    if draw(st.booleans()):
        return PanelRule(combine=combine, weights=weights), None
    halves = [weights_by_judge(half) for half in draw(st.lists(_SOME_WEIGHTS, min_size=2, max_size=2) | st.just([]))]
    return PanelRule(combine=combine, weights="learned"), LearnedPanel(items=9, weights=weights, halves=halves)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("combine", get_args(Combination))
@given(data=st.data())
def test_every_rule_says_the_same_of_one_item_and_of_arrays(combine: Combination, ordered: bool, data: Any) -> None:
    rule, learned = data.draw(a_rule(combine))
    cells = data.draw(st.lists(_CELLS, min_size=1, max_size=6).filter(lambda rows: any(any(row) for row in rows)))
    rated = np.array(data.draw(st.lists(st.integers(0, len(cells) - 1), unique=True)), dtype=np.int64)
    ids = [f"item-{at}" for at in range(len(cells))]
    spec = ReportDimension(id="d", scale_min=1, scale_max=4, panel=rule, learned=learned, ordered=ordered)
    scores = np.array([[np.nan if cell is None else cell for cell in row] for row in cells], dtype=np.float64)
    people = People(rated, ("ada",), np.ones((len(rated), 1)))
    dimension = DimensionScores(spec, scores[:, :, None], people)
    halves = np.array([half_of(id) for id in ids], dtype=np.int64)
    job = with_learned_panels(JobScores(len(cells), JUDGES, (dimension,), halves=halves))

    whole = panel_scores(job, job.dimensions[0])
    for at, (id, row) in enumerate(zip(ids, cells, strict=True)):
        by_judge = {judge: float(cell) for judge, cell in zip(JUDGES, row, strict=True) if cell is not None}
        alone = job.dimensions[0].spec.combined(id, by_judge, rated=at in rated)
        assert (np.nan if alone is None else alone) == pytest.approx(whole[at], nan_ok=True)


def test_weights_of_those_who_spoke() -> None:
    rule = PanelRule(combine="weighted", weights={"a": 3.0, "b": 1.0, "c": 0.0})
    row = np.array([[2.0, 4.0, 5.0], [np.nan, 4.0, 5.0], [np.nan, np.nan, 5.0]])
    wanted = weighted_mean(row, np.array([3.0, 1.0, 0.0]))
    assert rule.combined({"a": 2, "b": 4, "c": 5}) == wanted[0] == 2.5
    assert rule.combined({"b": 4, "c": 5}) == wanted[1] == 4
    assert rule.combined({"c": 5}) is None and np.isnan(wanted[2])
    assert rule.combined({}) is None


def a_job(**more: Any) -> dict[str, Any]:
    return {
        "items": [{"id": "i", "text": "t"}],
        "agents": [{"name": "a"}, {"name": "b"}],
        "dimensions": [{"id": "d", "instructions": "?"}, {"id": "e", "instructions": "?", "panel": "worst"}],
        **more,
    }


def test_a_dimension_says_it_before_the_job() -> None:
    job = EvaluationJob.model_validate(a_job(panel="median"))
    assert [job.panel_of(d).combine for d in job.dimensions] == ["median", "worst"]
    plain = EvaluationJob.model_validate(a_job(dimensions=[{"id": "d", "instructions": "?"}]))
    assert plain.panel_of(plain.dimensions[0]).combine == "mean"
    assert job.panelled and not plain.panelled


@pytest.mark.parametrize(
    ("panel", "message"),
    [
        ("best", "Input should be 'mean', 'median'"),
        ("weighted", "weights belong to combine: weighted"),
        ({"combine": "mean", "weights": {"a": 1}}, "weights belong to combine: weighted"),
        ({"combine": "weighted", "weights": {"a": 1}}, "'b' has no weight, and 0 must be said"),
        ({"combine": "weighted", "weights": {"a": 1, "b": 1, "c": 1}}, "'c' is no judge of this job"),
        ({"combine": "weighted", "weights": {"a": -1, "b": 1}}, "'a' must be a finite number >= 0, got -1"),
        ({"combine": "weighted", "weights": {"a": 0, "b": 0}}, "one at least must be above 0"),
    ],
)
def test_what_cannot_be_meant(panel: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        EvaluationJob.model_validate(a_job(panel=panel))
    assert message in str(caught.value)
