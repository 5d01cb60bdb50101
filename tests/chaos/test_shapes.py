"""What is held of a job with a shape of its own is broken by one opinion."""

from __future__ import annotations

import random
from typing import Any

import pytest

from lab.chaos import installation, shapes

JOB = {
    "items": [{"id": "i", "text": "t"}],
    "agents": [{"name": "first"}, {"name": "second"}],
    "dimensions": [{"id": "d", "instructions": "x"}],
    "panel": installation.UNCERTAIN,
    "replicates": 2,
}


def opinion(judge: str, score: int | None, **more: Any) -> dict[str, Any]:
    return {"judge": judge, "item_id": "i", "criterion_id": "d", "score": score, **more}


@pytest.mark.parametrize("scores, wrong", [((3, 3), False), ((3, 4), True), ((3, None), False), ((3,), True)])
def test_nobody_is_left_out_where_those_before_were_uncertain(scores: tuple[int | None, ...], wrong: bool) -> None:
    """Of a failure nobody knows when it was."""
    said = [opinion("first", score) for score in scores] + [opinion("second", None, not_needed=True)] * 2
    assert bool(shapes.verdicts(JOB, said)) == wrong
    report = {"units": 4, "unpublished": 0, "answer": None}
    assert bool(shapes.outcomes(JOB, report, said)) == (len(said) != 4)


def test_a_batch_that_is_needed_in_one_dimension_is_a_whole_call() -> None:
    needed = {("first", "d"), ("first", "e"), ("second", "d")}
    said = [
        opinion(judge, 3, criterion_id=of, replicate=0, not_needed=(judge, of) not in needed)
        for judge in ("first", "second", "third")
        for of in ("d", "e")
    ]
    assert shapes.fewest_batches(said) == 2


def test_each_shape_is_drawn_sometimes() -> None:
    jobs = [installation.a_job(random.Random(seed), "j") for seed in range(200)]
    panels = [job.get("panel") for job in jobs]
    assert all(panel in panels for panel in (*installation.PANELS, installation.UNCERTAIN, None))
    assert {job.get("replicates", 1) for job in jobs if job.get("panel") == installation.UNCERTAIN} == {2}
