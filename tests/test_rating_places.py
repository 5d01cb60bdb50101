"""A rating that came with its item is told by the item: there is no file and no line."""

from __future__ import annotations

import pytest

from dicast.app.datasets import DatasetError
from tests.test_ratings import a_job, found


def test_a_wrong_rating_beside_an_item_of_the_job_names_the_item() -> None:
    items = [{"id": f"i{n}", "text": "t", "metadata": {"best": score}} for n, score in enumerate((3, 9))]
    with pytest.raises(DatasetError) as caught:
        found(a_job({"columns": {"clear": {"ada": "best"}}}, items=items))
    said = str(caught.value)
    assert "item 'i1'" in said and said.endswith("must be a whole number from 1 to 5 (the scale of 'clear'), got 9")
