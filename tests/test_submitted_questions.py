"""What a submission keeps of a job's question, and which questions it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from dicast.app.domain.refusals import JobRefused
from dicast.app.ledger.keys import LedgerKeys
from tests.test_submission import app

__all__ = ["app"]


def a_job(question: dict[str, Any], groups: str = "aabb", **more: Any) -> dict[str, Any]:
    items = [{"id": f"i{n}", "text": "t", "metadata": {"system": group}} for n, group in enumerate(groups)]
    agents, dimensions = [{"name": "j"}, {"name": "k"}], [{"id": "d", "instructions": "?"}]
    return {"id": "j", "items": items, "agents": agents, "dimensions": dimensions, "question": question, **more}


def kept(app: Any) -> list[str | None]:
    record = LedgerKeys(app.keys).job("j")
    return [app.store.hget(record, name) for name in ("asks", "pairs")]


def difference(**more: Any) -> dict[str, Any]:
    return {"difference": {"by": "system", "of": ["a", "b"]}, **more}


def test_a_difference_is_asked_of_as_many_pairs_as_there_are(app: Any) -> None:
    app.submit(a_job(difference(), "ababab"))
    assert kept(app) == ["1", "3"]


def test_a_mean_is_asked_of_items_and_no_question_of_nothing(app: Any) -> None:
    app.submit(a_job({"mean_at_least": 3}))
    assert kept(app) == ["1", None]
    plain = a_job({"width": 1})
    del plain["question"]
    app.submit({**plain, "id": "other"})
    assert app.store.hget(LedgerKeys(app.keys).job("other"), "asks") is None


@pytest.mark.parametrize("question, groups, said", [
    (difference(), "aab", "as many items of one as of the other are needed, got 2 of 'a' and 1 of 'b'"),
    (difference(), "ccc", "got 0 of 'a' and 0 of 'b'"),
    ({"width": 0.5, "most_calls": 1}, "ab", "question.most_calls: an item takes 2 calls, got 1"),
])  # fmt: skip
def test_a_question_that_cannot_be_asked_is_refused(app: Any, question: dict[str, Any], groups: str, said: str) -> None:
    with pytest.raises(JobRefused, match=said.replace("(", r"\(")):
        app.submit(a_job(question, groups))
    assert kept(app) == [None, None]


def test_calls_that_suffice_for_one_item_suffice(app: Any) -> None:
    app.submit(a_job({"width": 0.5, "most_calls": 2}))
    assert kept(app) == ["1", None]
