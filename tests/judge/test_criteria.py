"""Criteria without an answer: the unit is asked again while it may be, and then scored with bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from dicast.app.domain.opinion import Usage
from dicast.app.domain.refusals import validated
from dicast.app.providers.base import ChatReply, ChatRequest
from tests.judge.desk import Scripted, good

CRITERIA = [
    {"text": "Sends the asker to a doctor", "points": 10},
    {"text": "Asks for other symptoms", "points": 3},
    {"text": "Names no dose", "points": -6},
]
HEALTH = {"id": "health", "instructions": "Does it serve the asker?", "scale": "criteria"}
PLAIN = {"id": "clear", "instructions": "Is it clear?"}


def of_criteria(*dimensions: Any, points: int = -6, **more: Any) -> Any:
    criteria = [*CRITERIA[:2], {**CRITERIA[2], "points": points}]
    items = [{"id": "fever", "text": "Go now.", "criteria": criteria}]
    document = {"id": "j", "items": items, "agents": [{"name": "a0"}], "dimensions": [HEALTH, *dimensions], **more}
    return validated(document)


def answering(answers: Mapping[str, Any]) -> Any:
    """Answers as it is asked, but for the criteria's answers."""

    def answer(request: ChatRequest) -> ChatReply:
        reply = good(request)
        document = orjson.loads(reply.text)
        for opinion in document.get("opinions", [document]):
            if "answers" in opinion:
                opinion["answers"] = answers
        return ChatReply(orjson.dumps(document).decode(), reply.model, Usage(input_tokens=70, output_tokens=30), True)

    return answer


PARTIAL, WHOLE = answering({"1": True, "3": False}), answering({"1": True, "2": False, "3": True})


async def test_a_whole_answer_is_scored_by_the_items_points(bench, desk):
    ref = await bench.started(of_criteria(), units=1)
    judge = desk(Scripted(WHOLE))
    await judge.do(ref, 0)
    opinion = (await judge.results(ref))[0]["opinion"]
    assert (opinion["score"], opinion["answers"]) == (31, [True, False, True])
    assert opinion["attained"] == [round(4 / 13, 6)] * 2
    assert "Statement 3: Names no dose" in judge.provider.asked[0].user


async def test_what_lacks_an_answer_is_asked_again(bench, desk):
    ref = await bench.started(of_criteria(), units=1)
    judge = desk(Scripted(PARTIAL, WHOLE))
    first = await judge.do(ref, 0)
    assert first.retry and first.summary.endswith("malformed: answer refused: 1 of 3 criteria have no answer")
    await judge.again(ref, 0, 1)
    opinion = (await judge.results(ref))[0]["opinion"]
    assert (opinion["score"], opinion["attempts"]) == (31, 2)
    counters = bench.client.status("j").counters
    assert (counters["calls"], counters["retries"]) == (2, 1)


@pytest.mark.parametrize("more, calls", [({}, 3), ({"spend": "at_most_once"}, 1)])
async def test_what_still_lacks_an_answer_is_bounded_and_not_false(bench, desk, more, calls):
    ref = await bench.started(of_criteria(**more), units=1)
    judge = desk(Scripted(PARTIAL))
    await judge.again(ref, 0, calls)
    result = (await judge.results(ref))[0]
    assert "error" not in result and len(judge.provider.asked) == calls
    assert result["opinion"]["answers"] == [True, None, False]
    assert result["opinion"]["attained"] == [round(10 / 13, 6), 1.0]
    assert result["opinion"]["score"] == 88  # the middle of 77 and 100


async def test_a_batch_that_lacks_answers_asks_for_that_dimension_alone(bench, desk):
    ref = await bench.started(of_criteria(PLAIN), batched=True, units=2)
    judge = desk(Scripted(PARTIAL, WHOLE))
    steps = await judge.do(ref, "b0")
    assert [token.position for token in steps.follow_ups] == [0]
    assert sorted(await judge.results(ref)) == [1]
    await judge.do(ref, 0)
    opinions = {at: result["opinion"] for at, result in (await judge.results(ref)).items()}
    assert opinions[0]["score"] == 31 and opinions[0]["attempts"] == 2
    assert not {"attained", "answers"} & opinions[1].keys()
