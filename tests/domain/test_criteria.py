"""Criteria that items bring: which are accepted, what a judge is asked, how answers are read, and what they score."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dicast.app.domain.dimension import Attained, Criterion, Dimension, Scale, attained
from dicast.app.domain.item import Item
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.material import question_digest
from dicast.app.domain.panel import Agent
from dicast.app.domain.prompt import answer_limits, batch_prompt, single_prompt
from dicast.app.domain.refusals import InvalidJob, validated
from dicast.app.domain.verdict import Judgment, Malformed, read_batch, read_single
from dicast.app.providers.simulated import SimulatedJudge

NONCE = "0123456789abcdef"
AGENT = Agent(name="ann", max_tokens=600)
HEALTH = Dimension.model_validate({"id": "health", "instructions": "Does it serve the asker?", "scale": "criteria"})
CLEAR = Dimension(id="clear", instructions="Is it clear?")
EMERGENCY = {"text": "Says that it is an emergency", "points": 10}
CRITERIA = [EMERGENCY, {"text": "Asks for other\nsymptoms", "points": 3}, {"text": "Names no dose", "points": -6}]


def fever(**more: Any) -> Item:
    return Item.model_validate({"id": "fever", "text": "STATEMENTS: 9\nGo now.", "criteria": CRITERIA, **more})


ASKED = HEALTH.asked_about(fever().criteria)


def reply(answers: Any, **more: Any) -> str:
    return json.dumps({"nonce": NONCE, "argument": "So it is.", "cited_evidence": [], "answers": answers, **more})


def read(answers: Any) -> Judgment | Malformed:
    return read_single(reply(answers), structured=True, nonce=NONCE, scale=ASKED.scale)


# ---------------------------------------------------------------------- the score
@pytest.mark.parametrize(
    "answers, low, high, score",
    [
        ([True, True, False], 1.0, 1.0, 100),
        ([True, False, False], 10 / 13, 10 / 13, 77),
        ([True, False, True], 4 / 13, 4 / 13, 31),
        ([False, True, True], -3 / 13, -3 / 13, 0),
        ([False, False, False], 0.0, 0.0, 0),
        ([True, None, False], 10 / 13, 1.0, 88),
        ([False, False, None], -6 / 13, 0.0, 0),
        ([None, False, True], -6 / 13, 4 / 13, 15),
    ],
)
def test_the_score_is_healthbenchs(answers: list[bool | None], low: float, high: float, score: int) -> None:
    shares = attained([10, 3, -6], answers)
    assert shares == Attained(round(low, 6), round(high, 6)) and shares.score == score


POINTS = st.floats(0.001, 1e6) | st.floats(-1e6, -0.001) | st.integers(1, 10) | st.integers(-10, -1)
RUBRICS = st.lists(POINTS, min_size=1, max_size=12).filter(lambda points: max(points) > 0)


@given(RUBRICS, st.data())
def test_a_missing_answer_bounds_every_score_that_it_could_make(points: list[float], data: st.DataObject) -> None:
    def drawn(values: st.SearchStrategy[Any]) -> list[Any]:
        return data.draw(st.lists(values, min_size=len(points), max_size=len(points)))

    answers = drawn(st.sampled_from([True, False, None]))
    shares = attained(points, answers)
    whole = [a if a is not None else b for a, b in zip(answers, drawn(st.booleans()), strict=True)]
    exact = attained(points, whole)
    assert exact.low == exact.high and 0 <= exact.score <= 100
    assert shares.low - 1e-6 <= exact.low <= shares.high + 1e-6
    assert 100 * max(0, shares.low) - 1 <= shares.score <= 100 * min(1, max(0, shares.high)) + 1
    best = attained(points, [a if a is not None else worth > 0 for a, worth in zip(answers, points, strict=True)])
    worst = attained(points, [a if a is not None else worth < 0 for a, worth in zip(answers, points, strict=True)])
    assert (worst.low, best.high) == shares


@given(RUBRICS)
def test_meeting_all_good_criteria_alone_is_the_whole(points: list[float]) -> None:
    assert attained(points, [worth > 0 for worth in points]) == Attained(1.0, 1.0)
    assert attained(points, [False] * len(points)).score == 0
    assert attained(points, [None] * len(points)).high == 1.0


def test_points_and_answers_belong_together() -> None:
    with pytest.raises(ValueError, match="zip"):
        attained([1, 2], [True])


# ---------------------------------------------------------------------- what is accepted
@pytest.mark.parametrize(
    "criteria, reason",
    [
        ([], "criteria"),
        ([EMERGENCY] * 101, "at most 100"),
        ([{"text": " ", "points": 1}], "must not be blank"),
        ([{"text": "x" * 10_001, "points": 1}], "at most 10000"),
        ([{"text": "x", "points": 0}], "must be at least 0.001 above or below 0, got 0"),
        ([{"text": "x", "points": 2_000_000}], "less than or equal to 1000000"),
        ([{"text": "x", "points": float("nan")}], "points"),
        ([{"text": "x", "points": True}], "points"),
        ([{"text": "x", "points": "1"}], "points"),
        ([{"text": "x", "points": 1, "tags": []}], "tags"),
        ([{"text": "x"}], "points"),
        ([{"text": "x", "points": -1}, {"text": "y", "points": -2}], "one at least needs points above 0, got -1, -2"),
    ],
)
def test_what_are_no_criteria_is_refused(criteria: Any, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        fever(criteria=criteria)


def a_job(scale: Any = "criteria", **more: Any) -> EvaluationJob:
    item = {"id": "a", "text": "t", "criteria": CRITERIA}
    dimension = {"id": "d", "instructions": "Look.", "scale": scale}
    return validated({"items": [item], "agents": [{"name": "j"}], "dimensions": [dimension], **more})


@pytest.mark.parametrize(
    "more, reason",
    [
        ({"scale": {"criteria": "all"}}, "must be 'item', got 'all'"),
        ({"scale": {"criteria": "item", "max": 3}}, "has criteria and max: a scale is of one kind"),
        ({"scale": {"criteria": "item", "labels": ["a", "b"]}}, "has labels and criteria"),
        ({"scale": {"criteria": "item", "item_criteria": CRITERIA}}, "item_criteria: Dicast alone sets it"),
        ({"agents": [{"name": "j", "score_from": "logprobs"}]}, "'d' has one of criteria"),
    ],
)
def test_what_a_scale_of_criteria_cannot_have_is_refused(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidJob) as refusal:
        a_job(**more)
    assert reason in str(refusal.value)


def test_levels_are_refused() -> None:
    dimension = {"id": "d", "instructions": "Look.", "scale": "criteria", "levels": {5: "good"}}
    with pytest.raises(InvalidJob, match="a scale of criteria has none"):
        a_job(dimensions=[dimension])


def test_items_and_dimensions_need_each_other() -> None:
    of_criteria, of_numbers = a_job(), a_job({"min": 1, "max": 5})
    assert of_criteria.misfit(fever()) is None
    assert of_criteria.misfit(fever(criteria=None)) == (
        "has no criteria, and the dimension 'd' judges each item by its own (scale: criteria)"
    )
    assert str(of_numbers.misfit(fever())).startswith("has 3 criteria, and no dimension judges by them")
    assert of_numbers.misfit(fever(criteria=None)) is None
    scale = of_criteria.dimensions[0].scale
    assert (scale.kind, scale.min, scale.max, scale.label(7)) == ("criteria", 0, 100, None)
    assert Dimension.model_validate_json(HEALTH.model_dump_json()) == HEALTH


# ---------------------------------------------------------------------- what is asked
def test_a_judge_reads_the_statements_and_not_their_points() -> None:
    prompt = single_prompt(AGENT, ASKED, fever(), NONCE, structured=False)
    request = prompt.user.partition("END OF MATERIAL")[2]
    assert "\n  Statement 1: Says that it is an emergency\n  Statement 2: Asks for other\n  symptoms\n" in request
    assert "\nSTATEMENTS: 3\n" in request and 'keys from "1" to "3"' in request and "SCALE" not in request
    assert not {"10", "-6", "points"} & set(request.replace(",", " ").split())


@pytest.mark.parametrize("structured", [True, False])
@pytest.mark.parametrize("transform", [lambda schema: schema, anthropic.transform_schema], ids=["openai", "anthropic"])
def test_judges_answer_as_they_are_asked(structured: bool, transform: Any) -> None:
    prompt = single_prompt(AGENT, ASKED, fever(), NONCE, structured=structured)
    judge = SimulatedJudge(1, "m", f"{prompt.system}\n{prompt.user}", 100)
    answer = judge.plain() if prompt.schema is None else judge.instance(transform(prompt.schema))
    if prompt.schema is not None:
        jsonschema.validate(answer, prompt.schema)
    verdict = read_single(json.dumps(answer), structured=structured, nonce=NONCE, scale=ASKED.scale)
    assert isinstance(verdict, Judgment), verdict
    assert verdict.answers is not None and len(verdict.answers) == 3 and verdict.unanswered == 0
    assert verdict.attained == attained([10, 3, -6], verdict.answers) and verdict.score == verdict.attained.score


def test_one_call_asks_for_other_dimensions_too() -> None:
    dimensions = [ASKED, CLEAR]
    prompt = batch_prompt(AGENT, dimensions, fever(), NONCE)
    assert "For a criterion that has STATEMENTS: under" in prompt.user
    answer = SimulatedJudge(1, "m", f"{prompt.system}\n{prompt.user}", 100).instance(prompt.schema or {})
    jsonschema.validate(answer, prompt.schema)
    reading = read_batch(json.dumps(answer), structured=True, nonce=NONCE, dimensions=dimensions)
    assert set(reading.accepted) == {"health", "clear"}, reading


def test_the_answers_get_their_share_of_the_tokens() -> None:
    many = fever(criteria=[EMERGENCY] * 50)
    prompts = [
        single_prompt(AGENT, HEALTH.asked_about(item.criteria), item, NONCE, structured=True)
        for item in (fever(), many)
    ]
    few_chars, many_chars = (
        prompt.schema["properties"]["argument"]["maxLength"] for prompt in prompts if prompt.schema
    )
    assert many_chars == answer_limits(600 - 7 * 50).argument_chars < few_chars


def test_the_question_knows_the_criteria() -> None:
    def asks(item: Item, dimension: Dimension = HEALTH) -> bytes:
        return question_digest(AGENT, [dimension.asked_about(item.criteria)], item, 0)

    dearer = [{**EMERGENCY, "points": 9}, *CRITERIA[1:]]
    talk = {"text": None, "messages": [{"role": "assistant", "content": "Go now."}]}
    items = [
        fever(),
        fever(criteria=dearer),
        fever(criteria=CRITERIA[:2]),
        fever(**talk),
        fever(**talk, criteria=dearer),
    ]
    assert len({asks(item) for item in items}) == len(items)
    # Another dimension of the item is not asked by them.
    assert len({asks(item, CLEAR) for item in items[:3]}) == len({asks(item, CLEAR) for item in items[3:]}) == 1
    assert NONCE in " ".join(fever(criteria=[{**EMERGENCY, "text": f"Says {NONCE}"}]).texts)


# ---------------------------------------------------------------------- what is answered
@pytest.mark.parametrize(
    "answers, wanted",
    [
        ({"3": False, "1": True, "2": True}, (True, True, False)),
        ({"1": True, "3": False}, (True, None, False)),
        ({"1": True, "2": None, "3": "no"}, (True, None, None)),
        ({"1": 1, "2": False}, (None, False, None)),
        ({}, "none of the 3 criteria has an answer"),
        ({"1": None, "2": "yes", "3": 0}, "none of the 3 criteria has an answer"),
        ({"1": True, "4": True}, "answers must have the keys 1 to 3, got '4'"),
        ([True, True, True], "answers must be an object"),
        (None, "answers must be an object"),
    ],
)
def test_no_answer_is_not_false(answers: Any, wanted: Any) -> None:
    verdict = read(answers)
    if isinstance(wanted, str):
        assert verdict == Malformed(wanted)
        return
    assert isinstance(verdict, Judgment)
    assert verdict.answers == wanted and verdict.unanswered == wanted.count(None)
    assert verdict.attained == attained([10, 3, -6], wanted) and verdict.score == verdict.attained.score


def test_an_answer_given_twice_is_none() -> None:
    text = reply({}).replace("{}", '{"1": true, "1": false}')
    assert isinstance(read_single(text, structured=True, nonce=NONCE, scale=ASKED.scale), Malformed)


def test_a_plain_dimension_is_asked_as_ever() -> None:
    assert CLEAR.asked_about(fever().criteria) is CLEAR and HEALTH.asked_about(None) is HEALTH
    assert Scale().questions == [] and Criterion(text="x", points=2).points == 2
