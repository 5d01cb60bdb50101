"""What workers read of the ledger without a script of its own: jobs, their items, pools, what is overdue."""

from __future__ import annotations

import time

import pytest

from dicast.app.domain.item import Item
from dicast.app.domain.plan import STANDARD
from dicast.app.ledger import client
from dicast.app.ledger.keys import LedgerKeys, PageRef, new_incarnation
from dicast.app.ledger.ledger import Unheard
from dicast.app.ledger.records import ClaimVerdict, LaneState, MessageId
from tests.ledger.bench import KEYS, a_job, claim, record


async def clock(bench, now_ms):
    """The lease clock stands here, as if nobody worked."""
    await bench.asyncs.hset(KEYS.clock, "now", now_ms)


# ------------------------------------------------------------------------------------------------------------- names
def test_a_page_is_named_so_that_it_is_found_again():
    ref = PageRef("j", "abc", 2, 7)
    assert (str(ref), ref.name, ref.number) == ("j|abc|2|7", "j~abc.2.7", "abc.7")
    assert PageRef.parse(str(ref)) == ref
    for text in ("j|abc|2", "j|abc|2|7|1", "j|abc|2|x"):
        with pytest.raises(ValueError):
            PageRef.parse(text)


@pytest.mark.parametrize(
    "text, token", [("7", MessageId(7)), ("b0", MessageId(0, batch=True)), ("b12", MessageId(12, True))]
)
def test_a_message_is_named_by_its_place(text, token):
    assert (MessageId.parse(text), str(token)) == (token, text)


def test_incarnations_differ_and_name_folders_on_any_disk():
    drawn = {new_incarnation() for _ in range(200)}
    assert len(drawn) == 200
    assert all(len(name) == 6 and name.isalnum() and name == name.lower() for name in drawn)


def test_workers_of_two_versions_find_the_same_names():
    keys, ref = LedgerKeys(KEYS), PageRef("j", "abc", 1, 2)
    of_a_job = [
        keys.job("j"), keys.items("j"), keys.continuations("j"), keys.pages("j"), keys.page(ref), keys.assignments(ref),
        keys.asking("j", "abc"),
    ]  # fmt: skip
    rest = ["", ":items", ":continuations", ":pages", ":page:abc:1:2", ":assignments:abc:1:2", ":asking:abc"]
    assert of_a_job == ["{test}:job:j" + name for name in rest]
    others = [keys.trouble("j"), keys.exhausted("p"), keys.rechecked("p"), keys.taken("n")]
    assert others == ["{test}:trouble:j", "{test}:exhausted:p", "{test}:rechecked:p", "{test}:taken:n"]
    shared = ["known_pools", "jobs", "unfinished", "watch", "due", "outbox"]
    assert [getattr(keys, name) for name in shared] == [f"{{test}}:{name}" for name in shared]


async def test_a_page_is_gathered_when_all_its_units_have_ended_and_once(bench):
    ref = await bench.started(a_job(items=1, dimensions=1), units=1)
    assert await bench.one.take_page(ref) is None
    await record(bench.one, ref, await claim(bench.one, ref, 0))
    assert await bench.one.take_page(ref) == {0: '{"opinion":{}}'}
    await bench.one.close_page(ref, 1)
    assert await bench.one.take_page(ref) == {}


# -------------------------------------------------------------------------------------------------------------- jobs
async def test_a_record_says_how_many_items_and_units_there_are(bench):
    await bench.started(a_job(items=3, agents=2, dimensions=2, replicates=2), units=24)
    record = await bench.one.job("j")
    assert (record.items, record.units, record.limit, record.resumed, record.fingerprint) == (3, 24, 5, 0, None)
    assert (record.spec.id, record.spec.items, len(record.spec.agents)) == ("j", [], 2)
    (lane,) = record.lanes
    assert (lane.pools, lane.agents, lane.dimensions, lane.replicates, lane.batched) == (("p",), (0, 1), 2, 2, False)
    assert await bench.one.job("another") is None


async def test_a_data_set_stays_in_the_spec(bench, tmp_path):
    (tmp_path / "d.jsonl").write_text('{"id": "a", "text": "b"}\n')
    spec = {**a_job(items=1).model_dump(exclude_unset=True), "items": str(tmp_path / "d.jsonl")}
    job = type(a_job()).model_validate(spec)
    bench.client.submit(job, [], 2, {"fingerprint": "f"})
    found = await bench.one.job("j")
    assert (found.spec.items, found.fingerprint) == (job.items, "f")


async def test_what_is_told_of_a_jobs_state_leaves_out_its_spec(bench):
    await bench.started()
    told = await bench.one.progress("j")
    assert "spec" not in told and (told["state"], told["project"], told["units"]) == ("running", "default", "4")


async def test_the_lane_says_where_planning_stands(bench):
    ref = await bench.started(cursor="c")
    assert await bench.one.lane("j", 0) == LaneState("running", "c", 1, 4)
    assert await bench.one.lane("j", 1) == LaneState("running", None, 0, 0)
    assert await bench.one.lane("another", 0) == LaneState("", None, 0, 0)
    assert await bench.one.lane_stages(ref) == [0]
    assert await bench.one.lane_stages(ref._replace(incarnation="x")) == []
    assert await bench.one.lane_stages(ref._replace(job="another")) == []


async def test_an_attended_job_is_looked_after_a_while_later(bench):
    await bench.started()
    await clock(bench, 5000)
    await bench.one.attended("j")
    await bench.one.attended("another")
    found = await bench.asyncs.zrange(bench.one.keys.unfinished, 0, -1, withscores=True)
    assert found == [("j", 5000 + STANDARD.unattended_ms)]


async def test_what_follows_a_jobs_end_is_kept_until_it_was_sent(bench):
    await bench.started()
    for task in ("t1", "t2", "t3"):
        bench.client.continue_with("j", task, f"after {task}")
    key = bench.one.keys.continuations("j")
    assert 0 < await bench.asyncs.ttl(key) <= client.CONTINUATION_S
    assert await bench.asyncs.ttl(key) > client.CONTINUATION_S - 60
    assert await bench.one.continuations("j") == {"t1": "after t1", "t2": "after t2", "t3": "after t3"}
    await bench.asyncs.sadd(bench.one.keys.outbox, "j", "k")
    await bench.one.announced("j", ["t1", "t3"])
    assert await bench.one.continuations("j") == {"t2": "after t2"}
    await bench.one.announced("j")
    assert await bench.one.unannounced() == ["k"]


async def test_what_is_to_be_known_of_jobs_before_they_are_lost(bench):
    await bench.started()
    known, unknown = await bench.one.facts(["j", "another"])
    assert unknown is None
    assert known == {"project": "default", "units": "4", "created_ms": str(bench.client.status("j").created_ms)}


async def test_both_tell_the_stores_wall_clock(bench):
    for found in (await bench.one.wall_ms(), bench.client.wall_ms()):
        assert abs(found - 1000 * time.time()) < 60_000
    await bench.asyncs.delete(KEYS.clock)
    assert await bench.one.now_ms() == 0


# ------------------------------------------------------------------------------------------------------------- items
async def test_items_come_back_by_their_numbers(bench):
    bench.submit(a_job(items=5))
    assert await bench.one.item_count("j") == 5
    assert [item.id for item in await bench.one.items("j", range(1, 3))] == ["i1", "i2"]
    assert await bench.one.items("j", range(4, 6)) == [], "they leave together"
    await bench.one.put_items("j", 5, [Item(id="x", text="x"), Item(id="y", text="y")])
    assert [item.id for item in await bench.one.items("j", range(4, 7))] == ["i4", "x", "y"]


@pytest.mark.parametrize(
    "most_bytes, want", [(1, 1), (7, 2), (12, 2), (13, 3), (6 * 30, 30), (6 * 30 + 1, 31), (10_000, 99), (0, 0)]
)
async def test_items_are_read_until_they_are_large_enough(bench, most_bytes, want):
    items = [Item(id=f"i{n:02}", text="sixsix") for n in range(100)]
    assert items[0].text_bytes == 6
    bench.client.submit(a_job().model_copy(update={"items": items}), [], 100, {})
    found = await bench.one.items_within("j", range(1, 100), most_bytes)
    assert [item.id for item in found] == [f"i{n:02}" for n in range(1, want + 1)]
    assert await bench.one.items_within("another", range(3), most_bytes) == []


# ------------------------------------------------------------------------------------------------------------- pools
async def test_a_pools_rate_is_that_of_its_calls(bench):
    assert await bench.one.pool_rate("p") == (0.0, 0)
    await bench.started()
    await bench.asyncs.hset(KEYS.rates, mapping={"p": "2.5|17", "q": "9|1"})
    assert await bench.one.pool_rate("p") == (2.5, 1)


async def test_after_a_death_all_is_looked_at_soon_and_nothing_later_than_before(bench):
    await clock(bench, 1000)
    soon = 1000 + STANDARD.look_soon_ms
    for zset in (bench.one.keys.watch, bench.one.keys.unfinished):
        await bench.asyncs.zadd(zset, {"sooner": 500, "now": soon, "later": soon + 1, "much": 90_000})
    await bench.one.look_soon()
    for zset in (bench.one.keys.watch, bench.one.keys.unfinished):
        found = dict(await bench.asyncs.zrange(zset, 0, -1, withscores=True))
        assert found == {"sooner": 500, "now": soon, "later": soon, "much": soon}


async def test_what_ends_or_comes_sooner_while_it_is_looked_at_stays_so(bench, monkeypatch):
    async def before(*_: object, **__: object) -> list[str]:
        return ["gone", "sooner"]

    keys = bench.one.keys
    await bench.asyncs.zadd(keys.watch, {"sooner": 1})
    monkeypatch.setattr(bench.one._redis, "zrangebyscore", before)
    await bench.one.look_soon()
    assert await bench.asyncs.zrange(keys.watch, 0, -1, withscores=True) == [("sooner", 1.0)]
    assert not await bench.asyncs.exists(keys.unfinished)
    assert [name async for name in bench.one.overdue(keys.unfinished, 50)] == ["gone", "sooner"]
    assert not await bench.asyncs.exists(keys.unfinished)


async def test_a_page_with_results_of_before_has_its_items_too(bench):
    bench.submit(a_job(items=1, dimensions=2))
    await bench.one.start("j", 5)
    ref = PageRef("j", bench.incarnation("j"), 0, 0)
    (item,) = await bench.one.items("j", range(1))
    assert await bench.one.open_page(ref, 0, 2, "", 1, {0: item}, {0: b'{"opinion":{}}'}) == 1
    _, found, claims = await bench.one.claim(ref, MessageId(1), [0, 1], 0)
    assert (found, [c.verdict for c in claims]) == (item, [ClaimVerdict.DONE, ClaimVerdict.RUN])


def test_who_is_not_heard_is_named():
    assert str(Unheard("w1")) == "the store does not hear w1 yet"


async def test_a_record_says_how_often_its_job_was_resumed(bench):
    bench.submit(a_job())
    await bench.asyncs.hset(bench.one.keys.job("j"), "resumed", 2)
    assert (await bench.one.job("j")).resumed == 2


async def test_all_open_pages_are_told(bench):
    refs = [PageRef("j", "abc", 0, page) for page in range(4)]
    await bench.asyncs.zadd(bench.one.keys.watch, {str(ref): ref.page for ref in refs})
    assert await bench.one.open_pages() == refs


async def test_jobs_that_have_not_ended_are_told_in_their_order(bench):
    await bench.asyncs.zadd(bench.one.keys.unfinished, {"b": 2, "a": 3, "c": 1})
    assert await bench.one.unfinished() == ["c", "b", "a"]


async def test_what_is_overdue_is_told_once_and_again_later(bench):
    await clock(bench, 1000)
    zset = bench.one.keys.watch
    await bench.asyncs.zadd(zset, {"a": 1, "b": 1000, "c": 1001})
    assert [member async for member in bench.one.overdue(zset, 50)] == ["a", "b"]
    assert dict(await bench.asyncs.zrange(zset, 0, -1, withscores=True)) == {"a": 1050, "b": 1050, "c": 1001}
    await clock(bench, 1050)
    assert [member async for member in bench.one.overdue(zset, 50, most=1)] == ["c"]


async def test_a_tick_holds_off_others_for_as_long_as_it_says(bench):
    assert await bench.one.lead(60_000)
    await bench.two.led(60_000)
    assert bench.nodes[1].id in await bench.asyncs.get(KEYS.beat)
    assert not await bench.one.lead(60_000)
    assert 50_000 < await bench.asyncs.pttl(KEYS.beat) <= 60_000


async def test_a_node_knows_what_it_holds(bench):
    ref = await bench.started()
    mine, done = await claim(bench.one, ref, 0), await claim(bench.one, ref, 1)
    await claim(bench.two, ref, 2, item=1)
    await record(bench.one, ref, done)
    assert await bench.one.list_claims(ref) == {0: mine.fence}
