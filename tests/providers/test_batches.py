"""Both batch APIs, over HTTP, against the simulated provider: what every one of them promises."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest

from dicast.app.domain.opinion import CallUsage
from dicast.app.providers.base import ChatRequest, FailureKind, ProviderFailure
from dicast.app.providers.batches import (
    BatchApi,
    BatchCounts,
    BatchRequest,
    BatchResult,
    BatchState,
    BatchStatus,
    CreateFailed,
    DamagedResults,
    ForeignBatch,
    RequestFate,
    UndecidedBatch,
    UnusableBatch,
)
from dicast.app.providers.registry import PoolUnusable, build_batch_api
from dicast.config.pools import PoolSpec
from dicast.config.settings import Settings
from lab.provider import Behaviour, SimulatedAccount, SimulatedConfig
from tests.providers.conftest import KEY, SCHEMA, RawServer, answer, chat, make, sends

PROMPT = "> text {n}\nEND OF MATERIAL 0123456789abcdef\nSCALE: 2..4\nNONCE: 0123456789abcdef\nJudge."
IDENTITY = "page-1-a"


def account(**behaviour: Any) -> SimulatedAccount:
    return SimulatedAccount(SimulatedConfig(behaviour=Behaviour().changed(behaviour), api_key=KEY))


def pool(dialect: str, **options: Any) -> PoolSpec:
    channel = "tool" if dialect == "anthropic" else "json_schema"
    options = {"provider": "simulated", "structured_channel": channel, "timeout_s": 10.0, **options}
    return PoolSpec(name="p", dialect=dialect, model="judge", api_key_env="POOL_KEY", **options)


@pytest.fixture
async def api_at() -> AsyncIterator[Callable[..., BatchApi]]:
    """A factory of clients that are closed after the test."""
    made: list[BatchApi] = []

    def build(dialect: str, base_url: str, key: str = KEY, **options: Any) -> BatchApi:
        made.append(build_batch_api(pool(dialect, **options), Settings(), {"POOL_KEY": key}, base_url=base_url))
        return made[-1]

    yield build
    for api in made:
        await api.close()


def questions(count: int) -> dict[str, ChatRequest]:
    return {f"unit_{n}": chat(PROMPT.format(n=n), schema=SCHEMA) for n in range(count)}


async def some(requests: Iterable[BatchRequest]) -> AsyncIterator[BatchRequest]:
    for request in requests:
        yield request


def encoded(api: BatchApi, asked: dict[str, ChatRequest]) -> AsyncIterator[BatchRequest]:
    return some([BatchRequest(name, api.body(request)) for name, request in asked.items()])


async def ended(api: BatchApi, batch: BatchStatus) -> BatchStatus:
    async with asyncio.timeout(10):
        while not batch.state.is_over:
            await asyncio.sleep(0.01)
            batch = await api.get(batch.id)
    return batch


async def collected(api: BatchApi, batch: BatchStatus, identity: str = IDENTITY) -> dict[str, BatchResult]:
    return {result.custom_id: result async for result in api.results(batch, identity)}


async def judged(api: BatchApi, asked: dict[str, ChatRequest], identity: str = IDENTITY) -> dict[str, BatchResult]:
    batch = await ended(api, await api.create(encoded(api, asked), identity))
    return await collected(api, batch, identity)


# ---------------------------------------------------------------------- one batch, from its creation to its answers
async def test_a_batch_gives_the_answers_of_calls_at_half_the_price(dialect, api_at):
    asked = questions(25)
    async with account(price="3/15") as sim:
        api, provider = api_at(dialect, sim.base_url), make(dialect, sim.base_url)
        results = await judged(api, asked)
        in_batch = {name: api.read(result, asked[name]) for name, result in results.items()}
        online = {name: await provider.complete(request) for name, request in asked.items()}
        await provider.close()
        bill = sim.invoice.sums()
    assert results.keys() == asked.keys()
    assert list(results) != list(asked), "the provider's order is another one"
    for name, reply in online.items():
        assert (in_batch[name].text, in_batch[name].usage) == (reply.text, reply.usage)
        assert (in_batch[name].model, in_batch[name].structured) == ("judge", True)
    roads = bill["roads"]
    assert roads["batch"]["requests"] == roads["online"]["requests"] == bill["repeated"] == 25
    assert 2 * roads["batch"]["pico"] == roads["online"]["pico"] > 0


async def test_the_body_is_what_the_online_call_sends(dialect, api_at):
    async with RawServer(answer(b"{}")) as server:
        api, provider = api_at(dialect, server.base_url), make(dialect, server.base_url)
        with pytest.raises(ProviderFailure):
            await provider.complete(chat(schema=SCHEMA))
        await provider.close()
        assert server.requests[0].endswith(b"\r\n\r\n" + api.body(chat(schema=SCHEMA)))


async def test_a_batch_passes_through_its_states(dialect, api_at):
    times = {"batch_validating": 30, "batch_time": 60, "batch_finalizing": 30, "batch_speed": 300}
    async with account(**times) as sim:
        api = api_at(dialect, sim.base_url)
        batch = await api.create(encoded(api, questions(3)), IDENTITY)
        states = [batch.state]
        while not batch.state.is_over:
            await asyncio.sleep(0.01)
            batch = await api.get(batch.id)
            states += [batch.state] if batch.state is not states[-1] else []
    at = BatchState
    anthropics, openais = [at.RUNNING, at.ENDED], [at.VALIDATING, at.RUNNING, at.FINALIZING, at.ENDED]
    assert states == (openais if dialect == "openai" else anthropics)
    assert batch.counts.total == batch.counts.succeeded == 3
    assert batch.ended_at is not None
    assert batch.created_at <= batch.ended_at <= batch.expires_at
    assert batch.identity == (IDENTITY if dialect == "openai" else None)


async def test_failed_requests_are_failures_of_calls(dialect, api_at):
    asked = {**questions(20), "wrong": chat("Judge.", max_tokens=0)}
    async with account(batch_errors=0.5, price="3/15") as sim:
        api = api_at(dialect, sim.base_url)
        if dialect == "openai":  # whose batches are read before they begin
            del asked["wrong"]
        results = await judged(api, asked)
        bill = sim.invoice.sums()
    kinds: dict[str, FailureKind] = {}
    for name, result in results.items():
        try:
            api.read(result, asked[name])
        except ProviderFailure as failure:
            kinds[name] = failure.kind
    assert results.keys() == asked.keys()
    assert kinds.pop("wrong", FailureKind.REJECTED) is FailureKind.REJECTED
    assert set(kinds.values()) == {FailureKind.SERVER}
    assert bill["roads"]["batch"]["requests"] == 20 - len(kinds), "errors are not billed"


@pytest.mark.parametrize("behaviour", [{"batch_expired": 0.5}, {"batch_time": 20, "batch_window": 10}])
async def test_what_expired_is_unavailable_and_free(dialect, behaviour, api_at):
    asked = questions(40)
    async with account(**behaviour, batch_speed=100, price="3/15") as sim:
        api = api_at(dialect, sim.base_url)
        batch = await ended(api, await api.create(encoded(api, asked), IDENTITY))
        results = await collected(api, batch)
        bill = sim.invoice.sums()
    assert batch.state is BatchState.EXPIRED
    late = [result for result in results.values() if result.fate is RequestFate.EXPIRED]
    assert 0 < len(late) < 40
    with pytest.raises(ProviderFailure) as caught:
        api.read(late[0], asked[late[0].custom_id])
    assert caught.value.kind is FailureKind.UNAVAILABLE
    assert results.keys() == asked.keys()
    assert bill["roads"]["batch"]["requests"] == 40 - len(late)


async def test_a_cancelled_batch_keeps_what_was_made(dialect, api_at):
    asked = questions(40)
    async with account(batch_time=100, batch_speed=100, batch_cancelling=10, price="3/15") as sim:
        api = api_at(dialect, sim.base_url)
        batch = await api.create(encoded(api, asked), IDENTITY)
        await asyncio.sleep(0.3)
        batch = await api.cancel(batch.id)
        assert batch.state is BatchState.CANCELLING
        batch = await ended(api, batch)
        results = await collected(api, batch)
        assert await api.cancel(batch.id) == batch, "what is over is not cancelled again"
        bill = sim.invoice.sums()
    answered = [result for result in results.values() if result.fate is RequestFate.ANSWERED]
    assert batch.state is BatchState.CANCELLED
    assert 0 < len(answered) < 40
    assert bill["roads"]["batch"]["requests"] == len(answered)
    if dialect == "anthropic":
        assert {result.fate for result in results.values()} == {RequestFate.ANSWERED, RequestFate.CANCELLED}


# ---------------------------------------------------------------------- limits
async def test_a_full_queue_of_tokens_fails_the_batch_after_its_creation(api_at):
    async with account(batch_time=1000, batch_queue_tokens=300) as sim:
        api = api_at("openai", sim.base_url)
        await api.create(encoded(api, questions(5)), "first")
        await asyncio.sleep(0.05)
        batch = await ended(api, await api.create(encoded(api, questions(20)), "second"))
        assert await collected(api, batch, "second") == {}
    assert batch.state is BatchState.FAILED
    assert batch.met_full_queue
    assert batch.errors[0].code == "token_limit_exceeded"


async def test_a_batch_is_known_although_the_client_closes_its_file_at_the_same_time(api_at, monkeypatch, tmp_path):
    class ClosedTwice(io.BufferedRandom):
        """Fails as a file does that two threads close."""

        def close(self) -> None:
            was_open = not self.closed
            super().close()
            if was_open and threading.current_thread() is threading.main_thread():
                raise ValueError("I/O operation on closed file")

    monkeypatch.setattr("tempfile.TemporaryFile", lambda: ClosedTwice(io.FileIO(tmp_path / "batch", "w+")))
    monkeypatch.setattr("aiohttp.payload.IOBasePayload._close", lambda *_: None)
    async with account(batch_time=1000) as sim:
        api = api_at("openai", sim.base_url)
        batch = await api.create(encoded(api, questions(5)), "first")
        assert batch.id in [known.id async for known in api.list(0.0)]


async def test_a_full_queue_of_requests_refuses_the_batch(api_at):
    async with account(batch_time=1000, batch_queue_requests=8) as sim:
        api = api_at("anthropic", sim.base_url)
        await api.create(encoded(api, questions(5)), "first")
        with pytest.raises(CreateFailed) as caught:
            await api.create(encoded(api, questions(5)), "second")
    assert (caught.value.kind, caught.value.uncertain) == (FailureKind.RATE_LIMITED, False)


async def test_a_batch_that_is_too_large_is_refused_for_certain(dialect, api_at):
    async with account(batch_bytes=2000) as sim:
        api = api_at(dialect, sim.base_url)
        with pytest.raises(CreateFailed) as caught:
            await api.create(encoded(api, questions(20)), IDENTITY)
    assert (caught.value.status_code, caught.value.uncertain) == (413, False)


def _with(**changes: Any) -> Callable[[BatchApi], list[BatchRequest]]:
    return lambda api: [BatchRequest(changes.get("id", "a"), api.body(chat(**changes.get("asked", {}))))]


@pytest.mark.parametrize(
    "requests, reason",
    [
        (lambda api: [], "must have a request"),
        (_with(id="a.b"), "letters, digits"),
        (_with(id="a" * 41), "letters, digits"),
        (_with(id=""), "letters, digits"),
        (lambda api: [BatchRequest("a", api.body(chat()))] * 2, "two requests have the id a"),
        (lambda api: [BatchRequest("a", b'{"model":\n"m"}')], "one line"),
        (lambda api: [BatchRequest(f"a{n}", api.body(chat())) for n in range(6)], "at most 5 requests"),
        (lambda api: [BatchRequest("a", api.body(chat("x" * 4000)))], "3000 bytes"),
    ],
)
async def test_what_must_not_be_sent_is_not(dialect, requests, reason, api_at):
    async with account() as sim:
        api = api_at(dialect, sim.base_url)
        api.limits = api.limits._replace(requests=5, bytes=3000)
        with pytest.raises(UnusableBatch, match=reason):
            await api.create(some(requests(api)), IDENTITY)
        assert sim.stats()["batches"] == {"states": {}, "verbs": {}}


@pytest.mark.parametrize("identity", ["", "a_b", "a" * 24, "é"])
async def test_an_identity_that_would_not_survive_is_refused(dialect, identity, api_at):
    async with account() as sim:
        api = api_at(dialect, sim.base_url)
        with pytest.raises(UnusableBatch, match="identity"):
            await api.create(encoded(api, questions(1)), identity)


async def test_only_anthropic_mixes_models(dialect, api_at):
    asked = {"a": chat(PROMPT), "b": chat(PROMPT, model="other")}
    async with account() as sim:
        api = api_at(dialect, sim.base_url)
        if dialect == "openai":
            with pytest.raises(UnusableBatch, match="same model"):
                await api.create(encoded(api, asked), IDENTITY)
        else:
            results = await judged(api, asked)
            assert {api.read(results[name], asked[name]).model for name in asked} == {"judge", "other"}


async def test_the_longest_ids_fit(dialect, api_at):
    name = "a" * 40
    async with account() as sim:
        api = api_at(dialect, sim.base_url)
        assert list(await judged(api, {name: chat(PROMPT)}, "i" * 23)) == [name]


# ---------------------------------------------------------------------- listing and adopting
async def test_the_list_goes_back_page_by_page_to_the_given_time(dialect, api_at, monkeypatch):
    monkeypatch.setattr("dicast.app.providers.batch_apis._PAGE_SIZE", 2)
    async with account() as sim:
        api = api_at(dialect, sim.base_url)
        made = [(await api.create(encoded(api, questions(1)), f"b{n}")) for n in range(5)]
        listed = [batch.id async for batch in api.list(made[0].created_at)]
        assert listed == [batch.id for batch in reversed(made)]
        assert [batch.id async for batch in api.list(made[-1].created_at + 10)] == []
        assert sim.stats()["batches"]["verbs"]["list"] == 4


async def test_a_batch_whose_creation_was_not_confirmed_is_found(dialect, api_at):
    async with account(batch_time=0.3, faults={"create_lost": 1}) as sim:
        api = api_at(dialect, sim.base_url)
        with pytest.raises(CreateFailed) as caught:
            await api.create(encoded(api, questions(4)), IDENTITY)
        assert caught.value.uncertain
        sim.control({"faults": {}})
        other = await api.create(encoded(api, questions(3)), "another")
        look: dict[str, Any] = {"since": other.created_at - 60, "requests": 4}
        running = await api.find(IDENTITY, **look)
        assert running is not None
        assert running.identity == (IDENTITY if dialect == "openai" else None)
        over = await ended(api, running)
        found = await api.find(IDENTITY, **look)
        assert found is not None
        assert (found.id, found.identity) == (running.id, IDENTITY)
        assert await api.find("nobody", **look) is None
        assert len(await collected(api, over)) == 4


async def test_a_clock_that_is_hours_ahead_hides_no_batch_with_an_identity(dialect, api_at):
    async with account() as sim:
        api = api_at(dialect, sim.base_url)
        batch = await api.create(encoded(api, questions(1)), IDENTITY)
        found = await api.find(IDENTITY, since=batch.created_at + 7200, requests=1)
        assert (found is not None) == (dialect == "openai")


async def test_a_batch_that_was_never_made_is_not_found(dialect, api_at):
    async with account(faults={"create_dropped": 1}) as sim:
        api = api_at(dialect, sim.base_url)
        with pytest.raises(CreateFailed) as caught:
            await api.create(encoded(api, questions(4)), IDENTITY)
        assert caught.value.uncertain
        assert await api.find(IDENTITY, since=0, requests=4) is None


async def test_an_upload_alone_is_no_batch(api_at):
    async with account(faults={"upload_lost": 1}) as sim:
        api = api_at("openai", sim.base_url)
        with pytest.raises(CreateFailed) as caught:
            await api.create(encoded(api, questions(1)), IDENTITY)
        assert not caught.value.uncertain
        assert sim.stats()["batches"]["states"] == {}


async def test_a_refused_connection_has_created_nothing(dialect, api_at):
    async with account() as sim:
        base_url = sim.base_url
    with pytest.raises(CreateFailed) as caught:
        api = api_at(dialect, base_url)
        await api.create(encoded(api, questions(1)), IDENTITY)
    assert not caught.value.uncertain


@pytest.mark.parametrize("fault", ["batches_5xx", "batches_garbage"])
async def test_a_useless_answer_to_a_creation_leaves_it_uncertain(fault, api_at):
    async with account(faults={fault: 1}) as sim:
        api = api_at("anthropic", sim.base_url)
        with pytest.raises(CreateFailed) as caught:
            await api.create(encoded(api, questions(1)), IDENTITY)
        assert caught.value.uncertain
        assert sum(sim.stats()["batches"]["states"].values()) == 1


async def test_running_batches_of_one_size_cannot_be_told_apart(api_at):
    async with account(batch_time=0.4) as sim:
        api = api_at("anthropic", sim.base_url)
        first, second = [await api.create(encoded(api, questions(4)), name) for name in ("one", "two")]
        with pytest.raises(UndecidedBatch) as caught:
            await api.find("one", since=first.created_at, requests=4)
        assert set(caught.value.ids) == {first.id, second.id}
        found = await api.find("one", since=first.created_at, requests=4, known=[second.id])
        assert found is not None
        assert found.id == first.id
        wrong = await api.find("one", since=first.created_at, requests=4, known=[first.id])
        assert wrong is not None
        wrong = await ended(api, wrong)
        with pytest.raises(ForeignBatch):
            await collected(api, wrong, "one")
        found = await api.find("one", since=first.created_at, requests=4)
        assert found is not None
        assert (found.id, found.identity) == (first.id, "one")


async def test_a_batch_may_be_listed_late(dialect, api_at):
    async with account(batch_list_lag=0.3, batch_time=10) as sim:
        api = api_at(dialect, sim.base_url)
        batch = await api.create(encoded(api, questions(1)), IDENTITY)
        assert await api.find(IDENTITY, since=batch.created_at, requests=1) is None
        await asyncio.sleep(0.4)
        assert await api.find(IDENTITY, since=batch.created_at, requests=1) is not None


# ---------------------------------------------------------------------- results that are not sound
async def _through(api: BatchApi, batch: BatchStatus) -> tuple[list[str], DamagedResults | None]:
    names: list[str] = []
    try:
        async for result in api.results(batch, IDENTITY):
            names.append(result.custom_id)
    except DamagedResults as damage:
        return names, damage
    return names, None


@pytest.mark.parametrize(
    "fault, garbage, duplicates, missing",
    [("results_garbage", 4, 0, 4), ("results_duplicate", 0, 4, 0), ("results_missing", 0, 0, 4)],
)
async def test_sound_results_come_before_the_complaint(dialect, fault, garbage, duplicates, missing, api_at):
    asked = questions(12)
    async with account(faults={fault: 1}) as sim:
        api = api_at(dialect, sim.base_url)
        batch = await ended(api, await api.create(encoded(api, asked), IDENTITY))
        names, damage = await _through(api, batch)
        assert damage is not None
        assert (damage.garbage, damage.duplicates, damage.missing, damage.cut) == (garbage, duplicates, missing, False)
        assert len(names) == len(set(names)) == 12 - missing
        sim.control({"faults": {}})
        names, damage = await _through(api, batch)
        assert (set(names), damage) == (asked.keys(), None)


async def test_an_answer_of_a_cancelled_batch_is_missed_where_others_have_none(api_at, monkeypatch):
    """What was made is billed; a file that is not whole yet must not make it look as if it had not been."""
    api = api_at("openai", "http://127.0.0.1:1/v1")
    counts = BatchCounts(total=2, succeeded=1)
    batch = BatchStatus("batch_1", BatchState.CANCELLED, 0.0, IDENTITY, counts, sources=("output", "errors"))
    error = {"code": "batch_cancelled", "message": "not made"}
    unmade = {"custom_id": f"{IDENTITY}_b", "response": None, "error": error}
    answered = {"custom_id": f"{IDENTITY}_a", "response": {"status_code": 200, "body": {}}, "error": None}
    files = {"output": [], "errors": [unmade]}

    async def lines(source):
        for line in files[source]:
            yield json.dumps(line).encode() + b"\n"

    monkeypatch.setattr(api, "_lines", lines)
    names, damage = await _through(api, batch)
    assert damage is not None
    assert (names, damage.missing) == (["b"], 1)
    files["output"] = [answered]
    names, damage = await _through(api, batch)
    assert (names, damage) == (["a", "b"], None)


async def test_results_that_broke_off_are_fetched_again(dialect, api_at):
    asked = questions(300)
    async with account(faults={"results_cut": 1}) as sim:
        api = api_at(dialect, sim.base_url)
        batch = await ended(api, await api.create(encoded(api, asked), IDENTITY))
        names, damage = await _through(api, batch)
        assert damage is not None
        assert damage.cut
        assert 0 < len(names) < 300
        sim.control({"faults": {}})
        names, damage = await _through(api, batch)
        assert (set(names), damage) == (asked.keys(), None)


async def test_results_of_another_batch_are_not_ours(dialect, api_at):
    async with account(faults={"results_foreign": 1}) as sim:
        api = api_at(dialect, sim.base_url)
        batch = await ended(api, await api.create(encoded(api, questions(3)), IDENTITY))
        with pytest.raises(ForeignBatch):
            await collected(api, batch)


async def test_results_that_end_with_the_connection_in_the_middle_of_a_line_are_cut(api_at):
    line = b'{"custom_id": "page-1-a_x", "result": {"type": "expired"}}\n'
    raw = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + line + line[:20]
    async with RawServer(sends(raw)) as server:
        api = api_at("anthropic", server.base_url)
        status = BatchStatus("msgbatch_1", BatchState.ENDED, 0.0, sources=("msgbatch_1",))
        names, damage = await _through(api, status)
    assert names == ["x"]
    assert damage is not None
    assert damage.cut


async def test_a_line_without_end_is_not_kept(api_at):
    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
        for _number in range(100):
            writer.write(b"x" * 100_000)
            await writer.drain()
        writer.write(b'\n{"custom_id": "page-1-a_x", "result": {"type": "expired"}}\n')

    async with RawServer(endless) as server:
        api = api_at("anthropic", server.base_url)
        status = BatchStatus("msgbatch_1", BatchState.ENDED, 0.0, sources=("msgbatch_1",))
        names, damage = await _through(api, status)
    assert names == ["x"]
    assert damage is not None
    assert damage.garbage == 1


async def test_a_tool_input_that_says_a_key_twice_is_no_answer(api_at):
    api = api_at("anthropic", "http://127.0.0.1:1")
    tool = '{"type": "tool_use", "name": "opinion", "input": {"score": 1, "score": 5}}'
    line = f'{{"custom_id": "i_x", "result": {{"type": "succeeded", "message": {{"content": [{tool}]}}}}}}\n'
    with pytest.raises(ProviderFailure) as caught:
        api.read(BatchResult("x", RequestFate.ANSWERED, line.encode()), chat(schema=SCHEMA))
    assert caught.value.kind is FailureKind.MALFORMED


# ---------------------------------------------------------------------- verbs that fail
VERBS: dict[str, Callable[[BatchApi], Any]] = {
    "get": lambda api: api.get("batch_1"),
    "list": lambda api: anext(api.list(0.0)),
    "cancel": lambda api: api.cancel("batch_1"),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b"{}",
        b'{"data": 7}',
        b'{"data": [7]}',
        b'{"id": "../x", "status": "completed", "processing_status": "ended", "created_at": 1}',
        b'{"id": "b", "status": "dancing", "processing_status": "dancing", "created_at": 1}',
        b'{"id": "b", "status": "completed", "processing_status": "ended", "created_at": "soon"}',
    ],
)
async def test_an_answer_that_is_none_is_malformed(dialect, verb, body, api_at):
    async with RawServer(answer(body)) as server:
        api = api_at(dialect, server.base_url)
        with pytest.raises(ProviderFailure) as caught:
            await VERBS[verb](api)
    assert caught.value.kind is FailureKind.MALFORMED


@pytest.mark.parametrize("verb", VERBS)
async def test_verbs_fail_in_the_classes_of_calls(dialect, verb, api_at):
    async with account() as sim:
        with pytest.raises(ProviderFailure) as caught:
            await VERBS[verb](api_at(dialect, sim.base_url, key="sk-another-key"))
        assert (caught.value.kind, caught.value.status_code) == (FailureKind.REJECTED, 401)
        sim.control({"faults": {"batches_5xx": 1, "get_lost": 0}})
        if verb == "list":
            with pytest.raises(ProviderFailure) as caught:
                await VERBS[verb](api_at(dialect, sim.base_url))
            assert (caught.value.kind, caught.value.status_code) == (FailureKind.SERVER, 502)


async def test_a_list_without_end_is_refused(dialect, api_at, monkeypatch):
    monkeypatch.setattr("dicast.app.providers.batch_apis._MOST_PAGES", 3)
    entry = {"id": "b", "status": "completed", "processing_status": "ended", "created_at": 5}
    body = json.dumps({"data": [entry], "has_more": True}).encode()
    async with RawServer(answer(body)) as server:
        with pytest.raises(ProviderFailure, match="without end"):
            _ = [batch async for batch in api_at(dialect, server.base_url).list(0.0)]


@pytest.mark.parametrize("options", [{"provider": "local"}, {"dialect": "openai", "api_version": "2024-10-21"}])
def test_pools_without_batches_say_so(options):
    with pytest.raises(PoolUnusable, match="no batch API"):
        build_batch_api(pool(**{"dialect": "openai", **options}), Settings(), {"POOL_KEY": KEY}, base_url="http://h")


# ---------------------------------------------------------------------- flex
@pytest.mark.parametrize("as_rate_limit", [False, True])
async def test_flex_without_capacity_is_unavailable_and_free(as_rate_limit, provider_at):
    async with account(flex_unavailable=1, flex_as_rate_limit=as_rate_limit, price="3/15") as sim:
        provider = provider_at("openai", sim.base_url)
        with pytest.raises(ProviderFailure) as caught:
            await provider.complete(chat(PROMPT, service_tier="flex"))
        assert (caught.value.kind, caught.value.status_code) == (FailureKind.UNAVAILABLE, 429)
        assert sim.invoice.sums()["pico"] == 0
        reply = await provider.complete(chat(PROMPT))
        assert not isinstance(reply.usage, CallUsage), "it names no service"
        assert sim.invoice.sums()["roads"].keys() == {"online"}


async def test_flex_costs_half(provider_at):
    async with account(price="3/15") as sim:
        provider = provider_at("openai", sim.base_url)
        replies = [await provider.complete(chat(PROMPT, service_tier=tier)) for tier in ("", "flex")]
        roads = sim.invoice.sums()["roads"]
    assert replies[0].text == replies[1].text
    assert replies[1].usage.service_tier == "flex"
    assert 2 * roads["flex"]["pico"] == roads["online"]["pico"]


async def test_a_rate_limit_of_other_calls_stays_one(provider_at):
    async with account(noise_429=1) as sim:
        with pytest.raises(ProviderFailure) as caught:
            await provider_at("openai", sim.base_url).complete(chat(PROMPT))
    assert caught.value.kind is FailureKind.RATE_LIMITED
