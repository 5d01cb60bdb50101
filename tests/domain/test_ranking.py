"""Lists of candidates become pairs: all, or a sample that joins them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dicast.app.domain.arrangement import arrangement_of
from dicast.app.domain.item import LIST_ID_CHARS, Item
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.ranking import PAIR_METADATA, PairsOfLists, pairing_problem


def a_list(many: int, item_id: str = "q1", **more: Any) -> Item:
    candidates = [{"id": f"c{n}", "text": f"Text {n}."} for n in range(many)]
    return Item.model_validate({"id": item_id, "candidates": candidates, "prompt": "Say it.", **more})


def joined(pairs: list[Item]) -> set[frozenset[Any]]:
    return {frozenset((pair.metadata["candidate_a"], pair.metadata["candidate_b"])) for pair in pairs}


def a_job(**more: Any) -> EvaluationJob:
    return EvaluationJob.model_validate({
        "items": [a_list(3).model_dump(exclude_defaults=True)], "agents": [{"name": "ann"}], "pairs": "all",
        "dimensions": [{"id": "better", "instructions": "Which?", "scale": "preference"}], **more,
    })  # fmt: skip


def test_all_pairs_say_where_they_come_from() -> None:
    pairs = list(PairsOfLists("all").items(a_list(4, metadata={"topic": "buses"})))
    assert [pair.id for pair in pairs] == ["q1/1-2", "q1/1-3", "q1/1-4", "q1/2-3", "q1/2-4", "q1/3-4"]
    assert len(joined(pairs)) == 6
    for pair in pairs:
        a, b = (str(pair.metadata[name]) for name in ("candidate_a", "candidate_b"))
        assert (pair.text_a, pair.text_b, pair.prompt) == (f"Text {a[1:]}.", f"Text {b[1:]}.", "Say it.")
        assert (pair.metadata["list"], pair.metadata["topic"]) == ("q1", "buses")


@given(st.integers(2, 12), st.integers(1, 80))
def test_a_sample_joins_all_candidates_and_is_the_same_again(many: int, pairs: int) -> None:
    item = a_list(many)
    made = list(PairsOfLists(pairs).items(item))
    assert len(made) == PairsOfLists(pairs).count(item) == len(joined(made)) == min(pairs, many * (many - 1) // 2)
    assert made == list(PairsOfLists(pairs).items(item))
    if pairs >= many - 1:
        assert pairing_problem(item, pairs) is None
        reached: set[Any] = {"c0"}
        for _ in range(many):
            reached |= {name for pair in joined(made) if pair & reached for name in pair}
        assert len(reached) == many
    else:
        assert f"at least {many - 1} pairs join" in str(pairing_problem(item, pairs))


def test_what_is_drawn_depends_on_the_ids_alone() -> None:
    item = a_list(8)
    other = item.model_copy(update={"candidates": list(reversed(item.candidates or [])), "prompt": None})
    assert joined(list(PairsOfLists(9).items(item))) == joined(list(PairsOfLists(9).items(other)))
    assert joined(list(PairsOfLists(9).items(item))) != joined(list(PairsOfLists(9).items(a_list(8, "q2"))))


def test_which_candidate_is_a_is_drawn_evenly() -> None:
    lists = (a_list(6, f"q{n}") for n in range(60))
    first = [pair.metadata["candidate_a"] < pair.metadata["candidate_b"]  # type: ignore[operator]
             for item in lists for pair in PairsOfLists("all").items(item)]  # fmt: skip
    assert 0.45 < sum(first) / len(first) < 0.55


def test_a_job_keeps_where_its_pairs_come_from_and_expands_its_lists() -> None:
    job = a_job(keep=["topic"])
    assert job.keep == ["topic", *PAIR_METADATA] and job.required_metadata == ["topic"]
    assert arrangement_of(job).expanded_count(a_list(5)) == 10
    assert not arrangement_of(a_job(pairs=None)).needed


@pytest.mark.parametrize(
    "more, told",
    [
        ({"dimensions": [{"id": "d", "instructions": "?"}]}, "pairs: they are compared by a preference"),
        ({"pairs": 0}, "pairs"),
    ],
)
def test_a_job_that_cannot_rank(more: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        a_job(**more)


def test_lists_and_other_items_do_not_mix() -> None:
    assert "is no list of candidates" in str(a_job().misfit(Item(id="1", text_a="x", text_b="y")))
    assert "say how many pairs of each are judged" in str(a_job(pairs=None).misfit(a_list(3)))
    assert "has metadata called 'list'" in str(a_job().misfit(a_list(3, metadata={"list": 1})))


@pytest.mark.parametrize(
    "given_item, told",
    [
        ({"candidates": [{"id": "a", "text": "x"}]}, "at least 2 items"),
        ({"candidates": [{"id": "a", "text": "x"}, {"id": "a", "text": "y"}]}, "the id 'a' occurs twice"),
        ({"candidates": [{"id": "a", "text": "x"}, {"id": "b", "text": " "}]}, "must not be blank"),
        ({"id": "x" * (LIST_ID_CHARS + 1), "candidates": [{"id": "a", "text": "x"}, {"id": "b", "text": "y"}]},
         "id: of a list of candidates has at most"),
    ],
)  # fmt: skip
def test_what_is_no_list(given_item: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        Item.model_validate({"id": "1", **given_item})
