"""What becomes of one message: prompt, call, answer, and what is recorded."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dicast.app.domain.material import key_from
from dicast.app.domain.opinion import CallUsage, FailureKind, Usage
from dicast.app.domain.price import cap_fields
from dicast.app.pipeline.call import NonceKey
from dicast.app.providers.base import ChatReply, ChatRequest, ProviderFailure
from dicast.config.settings import Settings
from tests.judge.desk import Scripted, dump, failing, good, said
from tests.ledger.bench import KEYS, a_job


# --------------------------------------------------------------------------------------------- answers and questions
async def test_the_answer_to_another_question_is_never_scored(bench, desk):
    """A gateway that mixes answers up: each is valid, fits the schema and comes through the structured channel."""
    answers: list[ChatReply] = []

    def mixed_up(request: ChatRequest) -> ChatReply:
        answers.append(good(request))
        return answers[-2] if len(answers) > 1 else answers[-1]

    ref = await bench.started(a_job(items=24, dimensions=1), units=24)
    judge = desk(Scripted(mixed_up), max_attempts=1)
    for position in range(24):
        await judge.do(ref, position)
    results = await judge.results(ref)
    scored = [position for position, result in results.items() if result["opinion"].get("score") is not None]
    assert scored == [0], "the first got its own answer"
    assert {result["error"]["message"] for result in results.values() if "error" in result} == {
        "answer refused: the answer carries another nonce"
    }


async def test_the_answer_to_another_batch_is_never_scored(bench, desk):
    first: list[ChatReply] = []

    def the_first(request: ChatRequest) -> ChatReply:
        first.append(good(request))
        return first[0]

    ref = await bench.started(a_job(items=2, dimensions=3), batched=True, units=6)
    judge = desk(Scripted(the_first))
    assert (await judge.do(ref, "b0")).follow_ups == ()
    assert [token.position for token in (await judge.do(ref, "b3")).follow_ups] == [3, 4, 5]
    assert sorted(await judge.results(ref)) == [0, 1, 2]


async def test_a_retry_is_the_same_request_byte_for_byte(bench, desk):
    away = failing(ProviderFailure(FailureKind.SERVER, "503", status_code=503))
    unreadable = lambda _: ChatReply("{", "m", Usage(), structured=True)  # noqa: E731
    ref = await bench.started(a_job(items=2, dimensions=1), units=2)
    judge = desk(Scripted(away, unreadable, good))
    await judge.again(ref, 0, 3)
    await judge.do(ref, 1)
    first, second, third, other = dump(judge.provider.asked)
    assert first == second == third != other
    assert (await judge.results(ref))[0]["opinion"].get("score") is not None


async def test_the_same_question_in_another_job_is_the_same_request(bench, desk):
    judge = desk(Scripted())
    for name in ("one", "two"):
        ref = await bench.started(a_job(name, items=1, dimensions=2, replicates=2), units=4)
        for position in range(4):
            await judge.do(ref, position)
    requests = dump(judge.provider.asked)
    assert requests[:4] == requests[4:]
    assert len(set(requests)) == 4, "replicates are different questions"


async def test_where_the_schema_may_hold_it_no_other_nonce_is_valid(bench, desk):
    ref = await bench.started(a_job(items=1, dimensions=2), units=2)
    judge = desk(Scripted(nonce_in_schema=True))
    await judge.do(ref, 0)
    schema = judge.provider.asked[0].schema
    assert schema["properties"]["nonce"]["enum"] == judge.provider.nonces


async def test_an_answer_without_the_nonce_is_asked_for_again(bench, desk):
    bare = ChatReply(said(7, None).replace('"nonce":null,', ""), "m", Usage(), structured=True)
    ref = await bench.started(a_job(items=1, dimensions=1), units=1)
    judge = desk(Scripted(lambda _: bare, good))
    await judge.again(ref, 0, 2)
    assert len(judge.provider.asked) == 2 and (await judge.results(ref))[0]["opinion"]["attempts"] == 2


# --------------------------------------------------------------------------------------------- the installation's key
def settings(**variables: str) -> Settings:
    return Settings.from_env({f"DICAST_{name}": value for name, value in variables.items()})


async def test_all_processes_share_one_key_though_nobody_gave_one(bench):
    one, two = (NonceKey(bench.asyncs, KEYS, settings(), SimpleNamespace(number=1)) for _ in range(2))
    assert await one.get() == await two.get() == await one.get()
    assert len(await one.get()) == 32
    assert await bench.asyncs.ttl(KEYS.nonce_key) == -1


async def test_a_store_that_was_emptied_has_a_new_key_for_all(bench):
    epoch = SimpleNamespace(number=1)
    one, two = (NonceKey(bench.asyncs, KEYS, settings(), epoch) for _ in range(2))
    before = await one.get()
    await bench.asyncs.delete(KEYS.nonce_key)
    assert await one.get() == before
    epoch.number = 2
    assert await one.get() == await two.get() != before


def key(given: Settings, namespace: str) -> bytes | None:
    return key_from(given.nonce_secret, namespace)


def test_a_given_key_is_the_installations_own():
    own, shared = "n" * 32, "m" * 32
    assert key(settings(), "a") is None
    assert key(settings(NONCE_KEY=own, MESSAGE_KEY=shared), "a") == key(settings(NONCE_KEY=own), "a")
    keys = {key(settings(NONCE_KEY=own), name) for name in ("a", "b")} | {key(settings(MESSAGE_KEY=shared), "a")}
    assert len(keys) == 3
    assert own in settings(NONCE_KEY=own).secrets(), "it is masked in logs"


async def test_a_template_arranges_what_is_asked_and_one_that_does_not_fit_costs_no_call(bench, desk):
    spec = a_job(items=2, dimensions=1).model_copy(update={"template": "Read this:\n{{ text | upper }}"})
    judge = desk(Scripted())
    await judge.do(await bench.started(spec, units=2), 0)
    (request,) = judge.provider.asked
    assert f"Read this:\n> {spec.items[0].text.upper()}\nEND OF MATERIAL" in request.user

    absent = spec.model_copy(update={"id": "absent", "template": "{{ text }}{{ metadata.author }}"})
    ref = await bench.started(absent, units=2)
    await judge.do(ref, 1)
    (result,) = (await judge.results(ref)).values()
    assert result["error"]["message"] == f"the job's template: item '{absent.items[1].id}': it has no 'author'"
    assert result["error"]["kind"] == FailureKind.REJECTED and len(judge.provider.asked) == 1


async def test_where_no_process_for_templates_can_be_started_a_unit_comes_again(bench, desk, monkeypatch):
    spec = a_job(items=1, dimensions=1).model_copy(update={"template": "{{ text }}"})
    judge = desk(Scripted())
    ref = await bench.started(spec, units=1)
    with monkeypatch.context() as patched:
        patched.setattr("dicast.app.submission.rendering.sys.executable", "/nowhere/python")
        await judge.do(ref, 0)
    assert await judge.results(ref) == {} and judge.provider.asked == []
    await judge.again(ref, 0, 1)
    assert (await judge.results(ref))[0]["opinion"].get("score") is not None


# ---------------------------------------------------------------------- reasoning that takes all tokens
def reasoned_away(tokens: int) -> Any:
    used = CallUsage(input_tokens=70, output_tokens=tokens, reasoning_tokens=tokens)
    return failing(ProviderFailure(FailureKind.OUT_OF_TOKENS, "max_tokens were spent", status_code=200, usage=used))


@pytest.mark.parametrize("token, rooms", [("0", [1024, 8192]), ("b0", [2048, 8192])])
async def test_a_model_that_has_reasoned_all_tokens_away_is_asked_once_with_more(bench, desk, token, rooms):
    ref = await bench.started(a_job(items=1, dimensions=2, batching=True), batched=token == "b0", units=2)
    judge = desk(Scripted(reasoned_away(50), good))
    await judge.again(ref, token, 2)
    assert [request.max_tokens for request in judge.provider.asked] == rooms
    first, second = judge.provider.asked
    assert (first.user, first.system, first.schema) == (second.user, second.system, second.schema)
    counters = bench.client.status("j").counters
    assert (counters["calls"], counters["tokens_out"], counters["retries"]) == (2, 80, 1)
    assert counters["scored"] == (2 if token == "b0" else 1)


async def test_one_that_does_it_again_is_not_paid_for_a_third_time(bench, desk):
    ref, judge = await bench.started(a_job(items=1, dimensions=1), units=1), desk(Scripted(reasoned_away(50)))
    await judge.again(ref, 0, 2)
    error = (await judge.results(ref))[0]["error"]
    assert (error["kind"], error["calls"], error["attempts"]) == ("out_of_tokens", 2, 2)
    assert len(judge.provider.asked) == 2


async def test_more_room_outlasts_failures_of_another_kind(bench, desk):
    away = failing(ProviderFailure(FailureKind.SERVER, "503", status_code=503))
    ref = await bench.started(a_job(items=1, dimensions=1), units=1)
    judge = desk(Scripted(away, reasoned_away(50), away, good), max_attempts=9)
    await judge.again(ref, 0, 4)
    assert [request.max_tokens for request in judge.provider.asked] == [1024, 1024, 8192, 8192]


async def test_a_cap_has_to_hold_the_larger_room(bench, desk):
    """The first call fits, the larger one does not."""
    job = a_job(items=1, dimensions=1, max_tokens=12_000)
    ref = await bench.started(job, units=1, extra=cap_fields(None, 12_000, None))
    judge = desk(Scripted(reasoned_away(5000)))
    await judge.again(ref, 0, 2)
    assert len(judge.provider.asked) == 1
    assert (await judge.results(ref))[0]["error"]["kind"] == "capped"


async def test_what_the_system_is_called_that_answered_is_kept(bench, desk):
    ref = await bench.started(a_job(items=2, dimensions=1), units=2)
    judge = desk(Scripted(lambda request: replace(good(request), fingerprint="fp_1"), good))
    await judge.do(ref, 0)
    await judge.do(ref, 1)
    told = [result["opinion"].get("system_fingerprint") for _, result in sorted((await judge.results(ref)).items())]
    assert told == ["fp_1", None]
