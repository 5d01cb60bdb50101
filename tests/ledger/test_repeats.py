"""What was seen when answers of the store were lost: each with the symptom that it had."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from redis.exceptions import ConnectionError as StoreConnectionError
from redis.exceptions import ResponseError

from dicast.app.ledger.client import UnknownJob
from dicast.app.ledger.ledger import POISON_DEATHS
from dicast.app.ledger.records import ClaimVerdict, Deferral, Due, JobState, MessageId, UnitResult, WriteVerdict
from dicast.app.pipeline.gather import Gatherer
from dicast.app.pipeline.record import Recorder, Spool, _spool_entry, retry_until_available
from dicast.app.reports.stored_items import set_aside
from tests.ledger.bench import KEYS, a_job, claim, record

COUNTERS = {"calls": 1, "tokens_in": 100, "retries": 1}


def counted(bench):
    counters = bench.client.status("j").counters
    return {name: n for name, n in counters.items() if n and name not in {"published", "done", "scored"}}


async def attempt(ledger, ref, name, position=0):
    _, _, claims = await ledger.claim(ref, MessageId(position), [position], 0, name)
    return claims[0]


# --------------------------------------------------------------------------------------------------------------- claims
@pytest.mark.parametrize("spend", ["at_least_once", "at_most_once"])
async def test_a_claim_that_is_asked_again_is_neither_a_death_nor_a_call(bench, spend):
    """42 of 200 units ended as `outcome_unknown` though no call was made; others as lost with none."""
    ref = await bench.started(a_job(spend=spend))
    first = await attempt(bench.one, ref, "a")
    for _ in range(2 * POISON_DEATHS):
        again = await attempt(bench.one, ref, "a")
        assert replace(again, elapsed_ms=0) == replace(first, elapsed_ms=0)
    assert (again.verdict, again.calls) == (ClaimVerdict.RUN, 1)
    assert counted(bench) == {}


async def test_another_attempt_of_the_same_node_is_another_claim(bench):
    """Its first task is gone: whether that had called, nobody knows."""
    ref = await bench.started()
    first, second = await attempt(bench.one, ref, "a"), await attempt(bench.one, ref, "b")
    assert (second.fence, second.calls) == (first.fence + 1, 2)
    assert counted(bench) == {"possible_double_charges": 1}


async def test_a_claim_that_comes_long_after_its_end_takes_nothing(bench):
    """It lay in a connection that had stalled: nobody waits for its answer."""
    ref = await bench.started()
    first = await attempt(bench.one, ref, "a")
    await bench.one.defer(ref, {}, [Deferral(0, first.fence, 1, 0)], [Due(MessageId(0), 60_000)])
    before = bench.redis.hgetall(bench.one.keys.page(ref)), bench.redis.zrange(bench.one.keys.due, 0, -1)
    assert (await attempt(bench.one, ref, "a")).fence == first.fence
    assert (bench.redis.hgetall(bench.one.keys.page(ref)), bench.redis.zrange(bench.one.keys.due, 0, -1)) == before


@pytest.mark.parametrize(
    "record_of_unit",
    ["7|w|0|0|-4|0|1|1", "7|w|0|0|-4|0|1|1|", "7", "", "7|w|inf|nan|0|0|1|1", "|||||||||||", "7|w|0|0|1|0|1|1|x,y;,,,"],
)
async def test_a_unit_whose_record_nobody_can_have_written_is_claimed_all_the_same(bench, record_of_unit):
    """One that could not be read hung its job, `cancel` and its workers' ends for ever."""
    ref = await bench.started()
    bench.redis.hset(bench.one.keys.page(ref), "u:0", record_of_unit)
    mine = await claim(bench.one, ref, 0)
    assert mine.verdict is ClaimVerdict.RUN
    assert mine.fence > 7 or not record_of_unit.startswith("7")
    assert await bench.one.defer(ref, {}, [Deferral(0, mine.fence, 1, 0)], []) == [WriteVerdict.DEFERRED]
    assert (await record(bench.one, ref, await claim(bench.one, ref, 0))).written == [WriteVerdict.NEW]


async def test_a_page_of_an_earlier_version_is_gathered(bench):
    ref = await bench.started()
    page = bench.one.keys.page(ref)
    bench.redis.hset(page, mapping={"r:0": '{"opinion":"a; b"}', "u:1": "5|gone|1|0|2|0|1|1", "left": 3})
    for position in (1, 2, 3):
        await record(bench.one, ref, await claim(bench.one, ref, position, item=position // 2))
    assert await bench.one.take_page(ref) == {0: '{"opinion":"a; b"}', **dict.fromkeys((1, 2, 3), '{"opinion":{}}')}


# --------------------------------------------------------------------------------------------------------------- counts
async def test_a_deferral_that_is_told_again_leaves_a_unit_that_can_be_read(bench):
    """The number of its calls went below 0, which no script could read: 119 of 120 units, and no end of the worker."""
    ref = await bench.started()
    mine = await claim(bench.one, ref, 0)
    for _ in range(5):
        assert await bench.one.defer(ref, COUNTERS, [Deferral(0, mine.fence, 0, 0, unpaid=1)], []) == [
            WriteVerdict.DEFERRED
        ]
    assert counted(bench) == COUNTERS
    again = await claim(bench.two, ref, 0)
    assert (again.verdict, again.calls) == (ClaimVerdict.RUN, 1)


async def test_a_result_that_is_told_again_counts_once(bench):
    """35 lost answers gave a report of 226 calls where the provider had 200."""
    ref = await bench.started()
    mine = await claim(bench.one, ref, 0)
    told = [await bench.one.record(ref, COUNTERS, [UnitResult(0, mine.fence, b"{}", True)]) for _ in range(3)]
    assert [(t.written, t.remaining, t.news) for t in told] == [([WriteVerdict.NEW], 3, n == 0) for n in range(3)]
    assert counted(bench) == COUNTERS


async def test_a_late_answer_was_paid_for_and_counts_once(bench):
    """Before its unit has a result, after it, and when the page is gone."""
    ref = await bench.started()
    for position in range(4):
        late = await claim(bench.one, ref, position)
        bench.kill(0)
        heir = await claim(bench.two, ref, position)
        bench.registry.announce(bench.nodes[0])
        if position == 0:
            await bench.one.record(ref, COUNTERS, [UnitResult(0, late.fence, b"{}", True)])
        await bench.two.record(ref, COUNTERS, [UnitResult(position, heir.fence, b"{}", True)])
        if position == 1:
            await bench.one.defer(ref, COUNTERS, [Deferral(1, late.fence, 1, 0)], [])
    assert await bench.one.close_page(ref, 1) == (True, False)
    for _ in range(3):
        for position in range(3):
            told = await bench.one.record(ref, COUNTERS, [UnitResult(position, late.fence, b"{}", True)])
            assert told.written == [WriteVerdict.GONE]
        assert await bench.one.defer(ref, COUNTERS, [Deferral(3, late.fence, 1, 0)], []) == [WriteVerdict.GONE]
    assert counted(bench) == {
        "calls": 8, "tokens_in": 800, "retries": 8, "stale": 4, "possible_double_charges": 4,
    }  # fmt: skip


async def test_an_answer_that_two_workers_have_adopted_counts_once(bench, tmp_path):
    ref = await bench.started()
    mine = await claim(bench.one, ref, 0)
    entry = _spool_entry(ref, COUNTERS, [UnitResult(0, mine.fence, b"{}", True)])
    heirs = [Recorder(ledger, Spool(tmp_path, "ns", "heir")) for ledger in (bench.one, bench.two)]
    adopted = [await heir.store_spooled(entry) for heir in heirs]
    assert [(found, recorded.written, recorded.news) for found, recorded in adopted] == [
        (ref, [WriteVerdict.NEW], True), (ref, [WriteVerdict.NEW], False),
    ]  # fmt: skip
    assert counted(bench) == COUNTERS


async def test_what_a_claim_has_deferred_it_cannot_record_any_more(bench):
    ref = await bench.started()
    mine = await claim(bench.one, ref, 0)
    await bench.one.defer(ref, COUNTERS, [Deferral(0, mine.fence, 1, 0)], [Due(MessageId(0), 0)])
    assert (await bench.one.record(ref, COUNTERS, [UnitResult(0, mine.fence, b"{}", True)])).written == [
        WriteVerdict.STALE
    ]
    assert counted(bench) == COUNTERS
    assert (await claim(bench.two, ref, 0)).verdict is ClaimVerdict.WAITING


async def test_a_unit_that_waits_often_has_a_short_record(bench):
    ref = await bench.started()
    for _ in range(50):
        mine = await claim(bench.one, ref, 0)
        await bench.one.defer(ref, {}, [Deferral(0, mine.fence, 0, 0, unpaid=1)], [Due(MessageId(0), 60_000)])
        for _ in range(3):
            assert (await claim(bench.two, ref, 0)).verdict is ClaimVerdict.WAITING
        bench.redis.hdel(bench.one.keys.page(ref), "w:0")
    assert len(bench.redis.hget(bench.one.keys.page(ref), "u:0")) < 500


# -------------------------------------------------------------------------------------------------------- announcements
async def ended(bench, cancelled=False):
    ref = await bench.started()
    if cancelled:
        bench.client.cancel("j")
    await record(bench.one, ref, *[await claim(bench.one, ref, p, item=p // 2) for p in range(4)], scored=False)
    await bench.one.close_page(ref, 1)


async def test_a_job_that_has_ended_does_not_go_back(bench):
    """Looked at and set in two steps: 3 of 1,500 jobs completed twice."""
    await ended(bench, cancelled=True)
    assert await bench.two.ripe("j")
    assert await bench.one.complete("j", bench.incarnation("j"), b"{}", 60)
    assert not await bench.two.ripe("j")
    assert bench.client.status("j").state is JobState.CANCELLED
    assert not await bench.two.complete("j", bench.incarnation("j"), b"{}", 60)


async def test_who_completed_a_job_is_told_so_again(bench):
    await ended(bench)
    assert [await bench.one.complete("j", bench.incarnation("j"), b"{}", 60, "mine") for _ in range(3)] == [True] * 3
    assert not await bench.two.complete("j", bench.incarnation("j"), b"{}", 60, "yours")
    bench.client.resume("j")
    await bench.one.start("j", 5, 1)
    bench.redis.hset(bench.one.keys.job("j"), "state", "finishing")
    assert await bench.one.complete("j", bench.incarnation("j"), b'{"old": 1}', 60, "mine")  # late: nobody listens
    assert bench.client.status("j").report is None


async def test_the_waiters_of_a_lost_job_are_told_by_whoever_comes(bench):
    """The one that recorded the loss may die, or lose the answer, before it has told anybody."""
    told = []
    announcer = SimpleNamespace(announce=lambda job, end, _: told.append((job, end.lost)))
    gatherer = Gatherer(bench.two, "", None, None, announcer, None)
    facts = {"project": "p", "units": "4", "created_ms": "1"}
    assert await bench.one.mark_lost("j", facts, 60)
    for job in await bench.two.unannounced():
        await gatherer.announce(job)
    assert told == [("j", True)]
    assert await bench.two.unannounced() == []


async def test_a_lost_job_that_is_submitted_again_is_not_announced(bench):
    await bench.one.mark_lost("j", {"project": "p", "units": "4", "created_ms": "1"}, 60)
    bench.submit(a_job())
    assert await bench.two.unannounced() == []


async def test_after_an_error_the_same_messages_are_taken(bench, monkeypatch):
    """Else they wait a minute for nobody: 500 units stood still for 60 s."""
    ref = await bench.started()
    for position in (0, 1):
        mine = await claim(bench.one, ref, position)
        await bench.one.defer(ref, {}, [Deferral(position, mine.fence, 1, 0)], [Due(MessageId(position), 0)])
    take, commands = bench.one._scripts["take_due"], []

    async def answer_is_lost(**command):
        commands.append(command)
        await take(**command)
        raise StoreConnectionError

    monkeypatch.setitem(bench.one._scripts, "take_due", answer_is_lost)
    with pytest.raises(StoreConnectionError):
        await bench.one.take_due()
    monkeypatch.setitem(bench.one._scripts, "take_due", take)
    assert await bench.two.take_due() == []
    assert [token.position for _, token in await bench.one.take_due()] == [0, 1]
    for position in (0, 1):
        bench.redis.zadd(bench.one.keys.due, {f"{ref}|{position}": 0})
    assert [token.position for _, token in await bench.one.take_due()] == [0, 1]
    bench.redis.zadd(bench.one.keys.due, {f"{ref}|0": 0})
    assert await take(**commands[0]) == []  # late: nobody would publish what it takes
    assert [token.position for _, token in await bench.one.take_due()] == [0]


async def test_who_was_told_to_plan_and_died_is_replaced(bench):
    ref = await bench.started(cursor='{"position": 4}')
    claims = [await claim(bench.one, ref, p, item=p // 2) for p in range(4)]
    plans = [(await record(bench.one, ref, c)).plan for c in claims[:3]]
    assert plans == [False, False, True]
    assert (await record(bench.one, ref, claims[2])).plan  # its answer was lost
    bench.kill(0)
    assert (await record(bench.two, ref, claims[3])).plan
    assert await bench.two.close_page(ref, 1) == (False, False)  # the second is alive


async def test_a_death_has_jobs_looked_at_soon_whose_planning_it_may_have_taken_along(bench):
    await bench.started(cursor='{"position": 4}')
    await bench.one.attended("j")
    await bench.two.look_soon()
    bench.redis.hincrby(KEYS.clock, "now", 3000)
    assert [job async for job in bench.two.overdue(bench.two.keys.unfinished, 1000)] == ["j"]


async def test_three_fail_overs_end_no_unit(bench):
    """The claims of living nodes whose ends the store has lost are no deaths."""
    ref = await bench.started()
    for calls in range(1, 2 * POISON_DEATHS):
        mine = await claim(bench.one, ref, 0)
        assert (mine.verdict, mine.calls) == (ClaimVerdict.RUN, calls)
        assert await bench.one.release_claims(ref, {0: mine.fence}) == 1


# ----------------------------------------------------------------------------------------------- submission, resumption
async def test_a_job_never_stands_there_without_its_items(bench):
    """What was staged may be gone before the job is there: staging ends by itself, and stores are emptied."""
    stage, gone = bench.client._stage, []

    def stage_and_lose(key, items):
        stage(key, items)
        if not gone:
            gone.append(bench.redis.delete(key))

    bench.client._stage = stage_and_lose
    assert bench.submit(a_job())
    assert gone == [1]
    assert len(await bench.one.items("j", range(2))) == 2


async def test_a_start_from_before_a_resumption_starts_nothing(bench):
    """The files of the earlier run are not set aside yet."""
    await ended(bench)
    await bench.one.complete("j", bench.incarnation("j"), b"{}", 60)
    bench.client.resume("j")
    assert await bench.one.start("j", 5, 0) == (JobState.SUBMITTED, False, False)
    assert await bench.one.start("j", 5, 1) == (JobState.RUNNING, True, False)


def test_what_a_new_run_has_written_is_not_set_aside(tmp_path):
    """A copy of the message comes when the first one's run is over."""
    folder = tmp_path / "j"
    folder.mkdir()
    for name in ("opinions.jsonl", "errors.jsonl", "report.json", "opinions.parquet"):
        (folder / name).write_text("earlier")
    set_aside(tmp_path, "j", "now", waits=lambda: True)
    assert {path.name for path in folder.rglob("*.json*")} == {"opinions.jsonl", "errors.jsonl"}
    for name in ("opinions.jsonl", "report.json"):
        (folder / name).write_text("new")
    answers = iter([True, False, False, False, False])  # it starts while the copy looks
    set_aside(tmp_path, "j", "now", waits=lambda: next(answers))
    assert (folder / "opinions.jsonl").read_text() == (folder / "report.json").read_text() == "new"
    assert (folder / "earlier" / "opinions.jsonl").read_text() == "earlier"


# ------------------------------------------------------------------------------------------------------------- patience
@pytest.mark.parametrize(
    "error", [ResponseError("ERR user_script:8: attempt to compare nil with number"), UnknownJob("j")]
)
async def test_what_waiting_cannot_mend_is_not_waited_for(error):
    """A script's fault was tried again for ever: neither `cancel` nor SIGTERM ended the worker."""
    asked = []

    async def broken():
        asked.append(1)
        raise error

    with pytest.raises(type(error)):
        await retry_until_available(broken)
    assert len(asked) == 1


async def test_a_result_that_the_store_refuses_for_good_is_told_at_once(bench, tmp_path):
    ref = await bench.started()
    mine = await claim(bench.one, ref, 0)
    bench.redis.set(bench.one.keys.page(ref), "not a page")
    with pytest.raises(ResponseError):
        await Recorder(bench.one, Spool(tmp_path, "ns", "n")).store(ref, {}, [UnitResult(0, mine.fence, b"{}", True)])
    assert not list(tmp_path.rglob("*.json"))
