"""Which of a job's items its question is asked about: the first ones, up to one that is not done."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from dicast.app.pipeline.inquiring import _complete


def test_an_item_that_is_not_done_ends_the_sample_though_later_ones_are() -> None:
    """Items that are quick to judge may differ from the others: those behind a slow one do not count yet."""
    rule = SimpleNamespace(combined=lambda given: float(np.mean(list(given.values()))))
    spec = SimpleNamespace(
        agents=[SimpleNamespace(name="a")], asked_dimension=0, dimensions=["d"], panel_of=lambda _: rule
    )
    board = SimpleNamespace(
        first_item=3, items=5, has_ended=lambda item, _: item != 5, scores=lambda item, *_: [float(item)]
    )
    assert list(_complete(SimpleNamespace(spec=spec), board)) == [3.0, 4.0]
