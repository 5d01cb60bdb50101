"""A job's texts, or why they cannot be shown; and how likely a sampled item was to be drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from dicast.app.domain.item import Item
from dicast.app.operator.rating import FORGOTTEN, NoTexts, _probability, items_of, text_of
from dicast.app.reports.blind import RatingRefused
from tests.server.serving import installation


def test_texts_that_cannot_be_read_are_told_from_those_that_are_gone(tmp_path: Path, redis_url: str) -> None:
    dicast = installation(tmp_path, redis_url)
    folder = tmp_path / "job"
    folder.mkdir()
    assert text_of(dicast, "gone", folder, "a") == (None, FORGOTTEN)
    kept = folder / "items.jsonl"
    kept.write_text('{"id": "a", "text": "one"}\n{"id": "b", "text": "two"}\n')
    assert [item.id for item in items_of(dicast, "gone", folder)] == ["a", "b"]
    assert text_of(dicast, "gone", folder, "b") == (Item(id="b", text="two"), None)
    assert text_of(dicast, "gone", folder, "c") == (None, "it is not among the job's items")
    kept.write_text('{"id": "a"\n')
    with pytest.raises(NoTexts, match="the job's items cannot be read: ValidationError"):
        list(items_of(dicast, "gone", folder))
    dicast.close()


@pytest.mark.parametrize("given, wanted", [
    (0.25, 0.25), ("0.5", 0.5), (1, 1.0), (1e-9, 1e-9), ("", None), ("much", None), (None, None), ([1], None),
])  # fmt: skip
def test_a_sampled_items_probability_is_read(given: object, wanted: float | None) -> None:
    assert _probability(Item(id="a", text="t", metadata={"probability": given})) == wanted


@pytest.mark.parametrize("given", [0, -0.5, 1.0001, "2", "0"])
def test_a_probability_that_is_none_is_refused(given: object) -> None:
    with pytest.raises(RatingRefused, match=r"probability: must be above 0 and at most 1, got .* \(a\)"):
        _probability(Item(id="a", text="t", metadata={"probability": given}))
