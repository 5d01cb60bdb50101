"""What the scripts write and answer, to the millisecond and to the last one of what they count."""

from dataclasses import replace

import pytest

from dicast.app.domain.plan import STANDARD
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import ClaimVerdict, Deferral, Due, JobState, MessageId, UnitResult, WriteVerdict
from tests.ledger.bench import KEYS
from tests.ledger.repeating import EPOCH, NOW, START_MS, Stage, one_incarnation
from tests.ledger.test_every_verb_twice import REF, claim, defer, open_page, page_open, record, submit, whole

__all__ = ["one_incarnation"]

CLAIM_MS = 60_000


@pytest.fixture
async def stage(redis_url):
    stage = Stage(redis_url)
    yield stage
    await stage.close()


async def claimed(ledger, position=0, again_ms=None):
    _, _, claims = await claim(ledger, position, again_ms)
    return claims[0]


def page(stage):
    return stage.redis.hgetall(stage.one.keys.page(REF))


def due(stage):
    return dict(stage.redis.zrange(stage.one.keys.due, 0, -1, withscores=True))


# --------------------------------------------------------------------------------------------------------------- claims
async def test_a_claim_tells_how_long_its_unit_has_been_worked_on(stage):
    await page_open(stage)
    first = await claimed(stage.one)
    assert (first.fence, first.calls, first.elapsed_ms) == (EPOCH + 1, 1, 0)
    assert (first.attempts, first.requeues) == (0, 0)
    await stage.one.defer(REF, {}, [Deferral(0, first.fence, 2, 3)], [])
    stage.clock.ms += 700
    again = await claimed(stage.two)
    assert replace(again, elapsed_ms=0) == replace(first, fence=EPOCH + 2, attempts=2, requeues=3, calls=2)
    assert again.elapsed_ms == 700


async def test_a_claim_lasts_so_long_and_not_a_millisecond_more(stage):
    await page_open(stage)
    await claimed(stage.one)
    stage.clock.ms += CLAIM_MS - 1
    assert (await claimed(stage.two)).verdict is ClaimVerdict.OWNED
    stage.clock.ms += 1
    assert (await claimed(stage.two)).verdict is ClaimVerdict.RUN


async def test_a_message_whose_unit_others_own_comes_again_if_that_is_wished(stage):
    await page_open(stage)
    await claimed(stage.one)
    await claimed(stage.two)
    assert due(stage) == {}
    assert (await claimed(stage.two, again_ms=5000)).verdict is ClaimVerdict.OWNED
    assert due(stage) == {f"{REF}|0": START_MS + 5000}
    assert page(stage)["unchorded"] == "1"


async def test_a_message_that_nobody_owns_comes_once(stage):
    await page_open(stage)
    assert (await claimed(stage.one, again_ms=5000)).verdict is ClaimVerdict.RUN
    assert due(stage) == {}
    assert "unchorded" not in page(stage)


async def test_an_attempt_is_remembered_while_six_others_have_ended_after_it(stage):
    """While it is open it is remembered however many came."""
    await page_open(stage)

    async def ask(name):
        _, _, claims = await stage.one.claim(REF, MessageId(0), [0], 0, name)
        return claims[0]

    async def ask_and_give_up(name):
        mine = await ask(name)
        await stage.one.defer(REF, {}, [Deferral(0, mine.fence, 0, 0, unpaid=1)], [])
        return mine

    first = await ask_and_give_up("first")
    for n in range(5):
        await ask_and_give_up(f"n{n}")
    assert (await ask("first")).fence == first.fence
    await ask_and_give_up("sixth")
    assert (await ask("first")).fence == first.fence + 7


async def test_the_oldest_open_claim_tells_its_end_after_many_others(stage):
    await page_open(stage)
    first = await claimed(stage.one)
    for _ in range(8):
        stage.clock.ms += CLAIM_MS
        mine = await claimed(stage.two)
        await stage.two.defer(REF, {}, [Deferral(0, mine.fence, 0, 0, unpaid=1)], [])
    told = [await stage.one.record(REF, {"calls": 1}, [UnitResult(0, first.fence, b"{}", True)]) for _ in range(2)]
    assert [(t.written, t.news) for t in told] == [([WriteVerdict.STALE], True), ([WriteVerdict.STALE], False)]


async def test_a_page_with_one_open_unit_is_not_whole(stage):
    await whole(stage)
    stage.redis.hset(stage.one.keys.page(REF), "left", 1)
    assert await stage.one.take_page(REF) is None
    assert page(stage)["unchorded"] == "1"


# ----------------------------------------------------------------------------------------------------------- deferrals
async def test_a_deferral_is_due_at_its_time_and_waits_only_if_it_must(stage):
    await page_open(stage)
    for position, wait in ((0, True), (1, False)):
        mine = await claimed(stage.one, position)
        await stage.one.defer(
            REF, {}, [Deferral(position, mine.fence, 1, 0)], [Due(MessageId(position), 4000 + position, wait)]
        )
    assert due(stage) == {f"{REF}|0": START_MS + 4000, f"{REF}|1": START_MS + 4001}
    assert (await claimed(stage.two, 0)).verdict is ClaimVerdict.WAITING
    assert (await claimed(stage.two, 1)).verdict is ClaimVerdict.RUN
    assert due(stage) == {f"{REF}|0": START_MS + 4000}


async def test_nothing_is_due_of_a_message_one_of_whose_units_is_not_given_up(stage):
    await page_open(stage)
    _, _, mine = await stage.one.claim(REF, MessageId(0, batch=True), [0, 1], 0)
    await record(stage.one, [1])
    deferrals = [Deferral(c.position, c.fence, 1, 0) for c in mine]
    written = await stage.one.defer(REF, {"retries": 1}, deferrals, [Due(MessageId(0, batch=True), 1000)])
    assert written == [WriteVerdict.DEFERRED, WriteVerdict.STALE]
    assert due(stage) == {}


async def test_messages_are_taken_at_their_time_and_again_a_while_later(stage):
    await page_open(stage)
    await claimed(stage.one)
    await defer(stage.one, 0, delay_ms=5000)
    stage.redis.zadd(stage.one.keys.due, {"gone|now|0|0|0": 0})
    stage.clock.ms += 4999
    assert await stage.two.take_due() == []
    assert list(due(stage)) == [f"{REF}|0"]
    assert not stage.redis.exists(stage.two.keys.taken(stage.nodes[1]))
    stage.clock.ms += 1
    assert await stage.two.take_due() == [(REF, MessageId(0))]
    assert due(stage) == {f"{REF}|0": stage.clock.ms + STANDARD.unclaimed_ms}
    assert "w:0" not in page(stage)
    assert 0 < stage.redis.pttl(stage.two.keys.taken(stage.nodes[1])) <= STANDARD.unclaimed_ms


# ---------------------------------------------------------------------------------------------------------------- jobs
@pytest.mark.parametrize(
    ("late_ms", "want"), [(0, (JobState.RUNNING, True, False)), (1, (JobState.SUBMITTED, False, True))]
)
async def test_a_job_may_start_until_it_expires(stage, late_ms, want):
    submit(stage)
    job = stage.one.keys.job("j")
    stage.redis.hset(job, "expires_ms", START_MS)
    stage.clock.ms += late_ms
    assert await stage.one.start("j", 5) == want
    assert stage.redis.hget(job, "started_ms") == (None if late_ms else str(START_MS))
    assert stage.redis.hgetall(KEYS.job_limits) == ({} if late_ms else {"j": "5"})


async def test_a_job_that_is_not_there_does_not_start(stage):
    assert await stage.one.start("j", 5) == (None, False, False)


async def test_a_cancelled_job_is_looked_at_now_and_what_waits_comes_now(stage):
    await page_open(stage, cursor='{"position": 4}')
    await claimed(stage.one)
    await defer(stage.one, 0, delay_ms=5000)
    stage.clock.ms += 10
    assert stage.client.cancel("j", revoked="terminated") == (JobState.RUNNING, False)
    assert due(stage) == {f"{REF}|0": stage.clock.ms}
    fields = stage.redis.hgetall(stage.one.keys.job("j"))
    assert (fields["state"], fields["cursor:0"], fields["revoked"]) == ("cancelling", "", "terminated")
    assert "cursor:1" not in fields
    assert stage.redis.zscore(stage.one.keys.unfinished, "j") == stage.clock.ms
    assert stage.redis.hgetall(KEYS.job_limits) == {}


async def test_a_cancelled_job_that_nobody_revoked_says_so(stage):
    submit(stage)
    assert stage.client.cancel("j") == (JobState.SUBMITTED, True)
    assert "revoked" not in stage.redis.hgetall(stage.one.keys.job("j"))
    assert stage.client.status("j").state is JobState.FINISHING


async def test_a_completed_job_is_kept_for_its_retention_and_ten_names_are_looked_at(stage):
    await whole(stage)
    await stage.one.close_page(REF, 1)
    names = {f"gone{n:02}": n for n in range(12)}
    stage.redis.zadd(stage.one.keys.jobs, names)
    stage.clock.ms += 5
    assert not await stage.one.complete("j", "another", b"{}", 60)
    assert await stage.one.complete("j", NOW, b"{}", 60)
    job = stage.one.keys.job("j")
    assert 55 < stage.redis.ttl(job) <= 60
    assert stage.redis.hget(job, "finished_ms") == str(stage.clock.ms)
    assert stage.redis.zrange(stage.one.keys.jobs, 0, -1) == ["gone10", "gone11", "j"]
    assert not stage.redis.exists(stage.one.keys.items("j"), stage.one.keys.pages("j"))
    assert stage.redis.zrange(stage.one.keys.unfinished, 0, -1) == []


# -------------------------------------------------------------------------------------------------------------- pages
async def test_a_job_with_another_lane_to_plan_is_not_finished(stage):
    await whole(stage)
    assert await stage.one.close_page(REF, 2) == (False, False)
    assert stage.client.status("j").state is JobState.RUNNING
    assert stage.redis.zrange(stage.one.keys.watch, 0, -1) == []


async def test_a_closed_page_asks_for_planning_at_the_low_water_mark(stage):
    await page_open(stage, cursor='{"position": 4}')
    job = stage.one.keys.job("j")
    for open_units, plan in ((2, False), (1, True)):
        stage.redis.hset(job, "open:0", open_units)
        stage.redis.hset(stage.one.keys.page(REF), "left", 0)
        assert await stage.one.close_page(REF, 1) == (False, plan)
    assert stage.redis.hget(job, "planning:0") == f"{NOW}.0.closed {stage.nodes[0]}"


async def test_an_assignment_to_a_pool_that_others_count_for_leaves_alone(stage):
    await page_open(stage, cursor='{"position": 4}')
    await open_page(stage, ref=REF._replace(page=1))
    await stage.one.assign(REF, {MessageId(0): "p", MessageId(1): "p"})
    await stage.one.assign(REF._replace(page=1), {MessageId(0): "p"})
    stage.redis.hset(stage.one.keys.page(REF), "left", 0)
    await stage.one.close_page(REF, 1)
    assert stage.redis.hgetall(KEYS.assigned) == {"p": "1"}


async def test_lost_units_become_due_at_once_and_are_counted_the_same_again(stage):
    await page_open(stage)
    opened = stage.clock.ms
    assert stage.redis.zscore(stage.one.keys.watch, str(REF)) == opened + STANDARD.page_still_ms
    await stage.one.find_lost(REF, 1, queue_empty=True)
    stage.clock.ms += 50
    assert await stage.one.find_lost(REF, 1, queue_empty=True) == 4
    assert due(stage) == {f"{REF}|{n}": opened + 50 for n in range(4)}
    assert page(stage)["unchorded"] == "1"
    assert await stage.one.find_lost(REF, 1, queue_empty=True) == 0  # all of them are due
    impatient = Ledger(stage.asyncs, KEYS, "x", claim_ms=CLAIM_MS, calls_max=9)
    assert await impatient.find_lost(REF._replace(page=9), 1, queue_empty=True) == 0  # there is no such page


async def test_a_page_that_moved_since_the_last_look_has_lost_nothing(stage):
    await page_open(stage)
    await stage.one.find_lost(REF, 1, queue_empty=True)
    await claimed(stage.one)
    await record(stage.one, [0])
    assert await stage.one.find_lost(REF, 1, queue_empty=True) == 0
    assert await stage.one.find_lost(REF, 1, queue_empty=True) == 3


async def test_a_batch_that_is_due_is_not_lost_with_its_units(stage):
    await page_open(stage)
    _, _, mine = await stage.one.claim(REF, MessageId(2, batch=True), [2, 3], 1)
    deferrals = [Deferral(c.position, c.fence, 1, 0) for c in mine]
    await stage.one.defer(REF, {}, deferrals, [Due(MessageId(2, batch=True), 60_000)])
    await stage.one.find_lost(REF, 2, queue_empty=True)
    assert await stage.one.find_lost(REF, 2, queue_empty=True) == 1
    assert set(due(stage)) == {f"{REF}|b0", f"{REF}|b2"}
    stage.redis.zrem(stage.one.keys.due, f"{REF}|b2")  # it was taken, and then lost
    assert await stage.one.find_lost(REF, 2, queue_empty=True) == 2
    assert set(due(stage)) == {f"{REF}|b0", f"{REF}|2", f"{REF}|3"}


# ---------------------------------------------------------------------------------------------------------------- jobs
async def test_who_submits_or_resumes_has_time_to_send_the_message(stage):
    submit(stage)
    assert stage.redis.zscore(stage.one.keys.unfinished, "j") == stage.clock.ms + STANDARD.unattended_ms
    await stage.one.start("j", 5)
    await open_page(stage)
    await whole(stage)
    await finishing_and_completed(stage)
    stage.clock.ms += 7
    stage.client.resume("j")
    assert not {"cursor:0", "open:0", "low:0", "planning:0"} & set(stage.redis.hkeys(stage.one.keys.job("j")))
    assert stage.redis.zscore(stage.one.keys.unfinished, "j") == stage.clock.ms + STANDARD.unattended_ms


async def finishing_and_completed(stage):
    await stage.one.close_page(REF, 1)
    assert await stage.one.claim_finish("j")
    assert await stage.one.complete("j", NOW, b"{}", 60)


async def test_a_cancelling_job_of_which_nothing_is_open_is_finishing(stage):
    await page_open(stage)
    await claimed(stage.one)
    stage.client.cancel("j")
    assert not await stage.one.ripe("j")
    stage.redis.delete(stage.one.keys.page(REF), stage.one.keys.pages("j"))
    assert await stage.one.ripe("j")
    assert stage.client.status("j").state is JobState.FINISHING


# ------------------------------------------------------------------------------------------------------------- results
async def test_a_result_names_its_claim_by_its_distance_from_the_pages_epoch(stage):
    await page_open(stage)
    await claimed(stage.one)
    assert (await record(stage.one, [0])).remaining == 3
    assert page(stage)["r:0"] == '1;{"x":1}'
    assert "u:0" not in page(stage)


async def test_the_same_unit_twice_in_one_write_counts_once(stage):
    await page_open(stage)
    await claimed(stage.one)
    twice = await record(stage.one, [0, 0])
    assert (twice.remaining, twice.written) == (3, [WriteVerdict.NEW, WriteVerdict.AGAIN])
    assert stage.client.status("j").done == 1


async def test_what_scored_and_what_did_not_is_counted_apart(stage):
    await page_open(stage)
    results = []
    for position in range(3):
        mine = await claimed(stage.one, position)
        results.append(UnitResult(position, mine.fence, b"{}", position == 0))
    assert (await stage.one.record(REF, {"calls": 3}, results)).remaining == 1
    fields = stage.redis.hgetall(stage.one.keys.job("j"))
    assert [fields[name] for name in ("done", "scored", "failed", "open:0", "calls")] == ["3", "1", "2", "1", "3"]
    assert "stale" not in fields
