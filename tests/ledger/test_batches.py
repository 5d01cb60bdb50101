"""The verbs for batches: whoever takes one has it alone, and a command that is obeyed twice changes nothing more."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from dicast.app.domain.plan import Intervals, lanes
from dicast.app.ledger.batches import BatchRecord, BatchStage, BatchStore, LaneRef, TurnLost
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import ClaimVerdict, MessageId
from tests.ledger.bench import KEYS, a_job
from tests.ledger.repeating import NOW, Repeating, Stage, one_incarnation

__all__ = ["one_incarnation"]

LANE = LaneRef("j", NOW, 0)
REF = PageRef("j", NOW, 0, 0)
UNSENT = BatchRecord("@b", LANE, "p", "m", BatchStage.COLLECTING, requests=4, formed_at=1.5)


def store_of(stage: Stage, node: int = 0) -> BatchStore:
    client: Any = Repeating(stage.asyncs, stage.clock, stage._now)
    client.hget = stage.one._redis.hget
    store = BatchStore(client, KEYS, stage.nodes[node], Intervals())
    store._name, store._numbers = f"{node}.", itertools.count(1)
    return store


def emptied(redis_url: str) -> Stage:
    """A stage on an empty store."""
    Stage(redis_url).redis.flushdb()
    return Stage(redis_url)


async def page_open(stage: Stage) -> None:
    stage.client.submit(a_job(), lanes([("p",)], 2, 1, [False], None, ["batch"]), 4, {})
    await stage.one.start("j", 5)
    items = dict(enumerate(await stage.one.items("j", range(2))))
    await stage.one.open_page(REF, 0, 4, "", 1, items, None, "attempt", unchorded=True)


async def begun(stage: Stage) -> tuple[BatchStore, BatchRecord]:
    await page_open(stage)
    store = store_of(stage)
    return store, await store.begin(UNSENT)


Act = Callable[[BatchStore, BatchRecord], Awaitable[Any]]

ACTS: dict[str, Act] = {
    "hold": lambda store, batch: store.hold(batch, stage=BatchStage.SEALED, requests=3),
    "rest": lambda store, batch: store.rest(batch, 500, state="running", done=2),
    "resend": lambda store, batch: store.resend(batch),
    "drop": lambda store, batch: store.drop(batch, {"end": "ended"}),
    "take": lambda store, batch: store.take(),
    "schedule": lambda store, batch: store.schedule(LANE, 100),
    "add_members": lambda store, batch: store.add_members(batch, 0, [MessageId(0), MessageId(3)]),
    "begin": lambda store, batch: store.begin(replace(UNSENT, name="@c")),
}


@pytest.mark.parametrize("name", ACTS)
async def test_a_verb_whose_answers_are_lost(redis_url: str, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    found = []
    for repeats in (0, 1, 3):
        numbers = itertools.count()
        monkeypatch.setattr(secrets, "token_hex", lambda n, numbers=numbers: f"{next(numbers):0{2 * n}x}")
        stage = emptied(redis_url)
        store, batch = await begun(stage)
        batch = await store.hold(batch, sending_at=2.0)
        if name == "take":
            await store.rest(batch, 0)
        stage.from_now_on(lambda repeats=repeats: repeats)
        answer = await ACTS[name](store, batch)
        found.append((answer, stage.dump()))
        await stage.close()
    assert found[0] == found[1] == found[2]


async def test_sending_again_counts_what_may_be_paid_twice(redis_url: str) -> None:
    stage = emptied(redis_url)
    store, batch = await begun(stage)
    again = await store.resend(await store.hold(batch, sending_at=2.0))
    assert (again.identity, again.sending_at) == ("b-2", 0.0)
    assert await store.read("@b") == again
    assert stage.client.status("j").counters["possible_double_charges"] == 4
    await stage.close()


@pytest.mark.parametrize(("due", "free"), [("b0 0 1", "0 1"), ("b0 0", "b0"), ("0", "0"), ("b0", "b0"), ("", "")])
async def test_no_unit_goes_by_two_messages_of_a_batch(redis_url: str, due: str, free: str) -> None:
    """The message of a group, and that of one of its units, may both be due after an answer that lacked a part."""
    stage = emptied(redis_url)
    stage.client.submit(a_job(), lanes([("p",)], 2, 1, [True], None, ["batch"]), 4, {})
    await stage.one.start("j", 5)
    items = dict(enumerate(await stage.one.items("j", range(2))))
    await stage.one.open_page(REF, 0, 4, "", 1, items, None, "attempt", unchorded=True)
    await stage.one.claim(REF, MessageId(0, batch=True), [0, 1], 0)
    job = await stage.one.job("j")
    assert job is not None
    store = store_of(stage)
    stage.redis.delete(store.keys.due)
    if due:
        stage.redis.zadd(store.keys.due, {f"{REF}|{token}": 0 for token in due.split()})
    found = await store.free_messages(LANE, job.lanes[0])
    assert sorted(map(str, found[REF])) == sorted([*free.split(), "b2"])
    await stage.close()


class Late:
    """The writes of a store to its batches, to be obeyed once more, later."""

    def __init__(self, store: BatchStore) -> None:
        self._write = store._scripts["write_batch"]
        self._sent: list[dict[str, Any]] = []
        store._scripts["write_batch"] = self  # type: ignore[assignment]

    async def __call__(self, **sent: Any) -> Any:
        self._sent.append(sent)
        return await self._write(**sent)

    async def come(self, kind: str) -> None:
        """Let the last write of a kind arrive again."""
        (*_, sent) = (sent for sent in self._sent if sent["args"][3] == kind)
        await self._write(**sent)


async def test_a_write_that_comes_late_changes_nothing(redis_url: str) -> None:
    stage = emptied(redis_url)
    await page_open(stage)
    store = store_of(stage)
    late = Late(store)
    batch = await store.begin(UNSENT)
    await store.add_members(batch, 0, [MessageId(0)])
    await store.add_members(batch, 0, [MessageId(1)])
    batch = await store.resend(await store.hold(batch, stage=BatchStage.SEALED, sending_at=2.0))
    batch = await store.hold(batch, sending_at=3.0)
    batch = await store.rest(batch, 5000, stage=BatchStage.SENT, provider_id="there")
    before = stage.dump()
    for kind in ("begin", "resend", "hold"):
        await late.come(kind)
    assert stage.dump() == before
    assert await store.read("@b") == batch and batch.number == 2
    await stage.close()


async def test_a_hold_between_two_writes_keeps_neither_away(redis_url: str) -> None:
    """A batch is held beside what is done with it, so that a hold may be obeyed before an earlier write."""
    stage = emptied(redis_url)
    store, batch = await begun(stage)
    first = next(store._writes)
    await store.hold(batch)
    store._writes = itertools.chain([first], store._writes)
    sealed = await store.hold(batch, stage=BatchStage.SEALED, requests=3)
    assert await store.read("@b") == sealed
    await stage.close()


async def test_what_a_batch_has_claimed_is_its_own_until_it_is_over(redis_url: str) -> None:
    """Its claims outlast every call and the worker that made them."""
    stage = emptied(redis_url)
    store, batch = await begun(stage)

    async def claims(ledger: Any, position: int, **more: Any) -> ClaimVerdict:
        _, _, found = await ledger.claim(REF, MessageId(position), [position], position // 2, **more)
        verdict: ClaimVerdict = found[0].verdict
        return verdict

    await store.add_members(batch, 0, [MessageId(0), MessageId(1)])
    for position in (0, 1):
        assert await claims(stage.one, position, attempt="@b", batch="@b") is ClaimVerdict.RUN
    stage.kill(0)
    stage.clock.ms += 3_600_000
    assert await claims(stage.two, 0) is ClaimVerdict.OWNED
    assert await claims(stage.two, 0, attempt="@b", batch="@b") is ClaimVerdict.RUN, "it is told again what it has"
    job = await stage.one.job("j")
    assert job is not None
    lane = job.lanes[0]
    other = store_of(stage, 1)
    assert await other.live_members(batch, lane) == {REF: [MessageId(0), MessageId(1)]}
    assert await other.free_messages(LANE, lane) == {REF: [MessageId(2), MessageId(3)]}
    taken = await other.take()
    assert taken is not None and taken.batch is not None
    with pytest.raises(TurnLost):
        await store.drop(batch)
    with pytest.raises(TurnLost):
        await store.add_members(batch, 0, [MessageId(2)])
    await other.drop(taken.batch)
    assert not stage.redis.exists(store.keys.batch_members("@b"))
    assert await claims(stage.two, 0) is ClaimVerdict.RUN
    await stage.close()
