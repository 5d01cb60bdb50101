"""How several scores become one: as app/statistics does it, and only where it can be meant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dicast.app.analysis.combining import COMBINATIONS, weighted_mean
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.panel import PanelRule


@pytest.mark.parametrize("combine", COMBINATIONS)
@given(scores=st.lists(st.integers(1, 5), min_size=1, max_size=11))
def test_one_item_is_combined_as_arrays_of_them_are(combine: Any, scores: list[int]) -> None:
    by_judge = {f"j{n}": float(score) for n, score in enumerate(scores)}
    row = np.array([[float(score) for score in scores]])
    assert PanelRule(combine=combine).combined(by_judge) == pytest.approx(COMBINATIONS[combine](row)[0])


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
