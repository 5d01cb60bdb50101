"""Every verb of the ledger, obeyed twice because its answer was lost: the same answer, and the same store."""

import itertools
import secrets
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import dicast.app.ledger
from dicast.app.domain.deadlines import Bounds, RoadChange
from dicast.app.domain.item import Item
from dicast.app.domain.plan import DroppedParameter, Stop, lanes
from dicast.app.ledger.client import LedgerClient
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import Deferral, Due, JobState, MessageId, Recorded, UnitResult
from dicast.app.ledger.troubles import StopStore
from tests.ledger.bench import KEYS, a_job
from tests.ledger.repeating import EPOCH, NOW, START_MS, Stage, one_incarnation

__all__ = ["one_incarnation"]

REF = PageRef("j", NOW, 0, 0)
FACTS = {"project": "p", "units": "4", "created_ms": "1"}


def submit(stage, **more):
    job = a_job(**more)
    return stage.client.submit(job, lanes([("p",)], 2, 1, [False]), 4, {})


# ------------------------------------------------------------------------------------------------------ states before
async def nothing(stage):
    pass


async def submitted(stage):
    submit(stage)


async def running(stage):
    submit(stage)
    await stage.one.start("j", 5)


async def page_open(stage, cursor="", spend="at_least_once"):
    submit(stage, spend=spend)
    await stage.one.start("j", 5)
    await open_page(stage, cursor)
    await stage.one.published(REF)


async def open_page(stage, cursor="", ref=REF):
    items = dict(enumerate(await stage.one.items("j", range(2))))
    return await stage.one.open_page(ref, 0, 4, cursor, 1, items, None, f"attempt{ref.page}")


async def more_to_come(stage):
    await page_open(stage, cursor='{"position": 4}')


async def claimed(stage, positions=(0,), **page):
    await page_open(stage, **page)
    for position in positions:
        await claim(stage.one, position)


async def claim(ledger, position, again_ms=None):
    return await ledger.claim(REF, MessageId(position), [position], position // 2, again_ms=again_ms)


async def owner_dead(stage, **page):
    await claimed(stage, **page)
    stage.kill(0)


async def owner_dead_and_heir(stage):
    await owner_dead(stage)
    await claim(stage.two, 0)


async def heir_done(stage):
    await owner_dead_and_heir(stage)
    await record(stage.two, [0], claims=2)


async def revoked(stage):
    await page_open(stage)
    stage.client.revoke_unit(REF, MessageId(0))


async def batch_formed(stage):
    stage.redis.hset(KEYS.node("@b"), "stage", "sealed")
    stage.redis.zadd(KEYS.at("batches"), {"@b": START_MS})


async def due_now(stage):
    await claimed(stage, positions=(0, 1))
    for position in (0, 1):
        await defer(stage.one, position)


async def waiting(stage):
    await claimed(stage)
    await defer(stage.one, 0, delay_ms=5000)


async def whole(stage):
    await claimed(stage, positions=range(4))
    await record(stage.one, range(4))


async def whole_but_late(stage):
    """A unit of it was claimed twice, and the first has not told its end."""
    await owner_dead_and_heir(stage)
    for position in (1, 2, 3):
        await claim(stage.two, position)
    await record(stage.two, [0], claims=2)
    await record(stage.two, [1, 2, 3])


async def late_and_gone(stage):
    await whole_but_late(stage)
    await stage.two.close_page(REF, 1)


async def finishing(stage):
    await whole(stage)
    await stage.one.close_page(REF, 1)
    await stage.one.claim_finish("j")


async def completed(stage):
    await finishing(stage)
    await stage.one.complete("j", NOW, b"{}", 60)


async def announced(stage):
    await completed(stage)
    await stage.one.announced("j")


async def stuck(stage):
    await finishing(stage)
    await finish_failed(stage.one)


async def finish_failed(ledger, tries=5):
    return await ledger.finish_failed("j", "a full disk", tries, tries)


KEPT = {0: '{"x":1}'}


async def unwritable(stage):
    await whole(stage)
    await gather_failed(stage.one)


async def gather_failed(ledger, tries=5):
    return await ledger.gather_failed("j", "a full disk", tries, 0)


async def given_up(stage):
    await unwritable(stage)
    stage.client.cancel("j", "a full disk")


async def kept(stage):
    await given_up(stage)
    assert await stage.one.close_page(REF, 1, KEPT) == (True, False)


async def ended_with_kept(stage):
    await kept(stage)
    await stage.one.complete("j", NOW, b"{}", 60)
    await stage.one.announced("j")


async def resumed(stage):
    await completed(stage)
    stage.client.resume("j")


async def cancelling(stage):
    await claimed(stage)
    stage.client.cancel("j")


async def cancelling_and_idle(stage):
    """Its last page was closed by a script that did not see all lanes planned."""
    await cancelling(stage)
    stage.redis.delete(stage.one.keys.page(REF), stage.one.keys.pages("j"))


async def last_but_one(stage):
    await more_to_come(stage)
    for position in range(3):
        await claim(stage.one, position)
    await record(stage.one, [0, 1])


async def told_to_plan(stage):
    await last_but_one(stage)
    await record(stage.one, [2])


async def gathered_by_nobody(stage):
    await claimed(stage, positions=range(4))
    await claim(stage.two, 3)  # a copy, which its chord does not count
    await record(stage.one, range(3))


async def stands_still(stage):
    await page_open(stage)
    await stage.one.find_lost(REF, 1, queue_empty=True)


async def all_overdue(stage):
    await page_open(stage)
    stage.clock.ms += 60_000


async def disowned(stage):
    await claimed(stage)
    await stage.one.release_claims(REF, {0: fence_of()})


# -------------------------------------------------------------------------------------------------------------- verbs
def fence_of(claims=1):
    return EPOCH + claims


def record(ledger, positions, claims=1):
    counters = {"calls": 1, "tokens_in": 7, "timeouts": 1}
    return ledger.record(REF, counters, [UnitResult(p, fence_of(claims), b'{"x":1}', True) for p in positions])


def mark(ledger, position, mark=19, claims=1):
    """A result that goes to the score board too."""
    return ledger.record(REF, {"calls": 1}, [UnitResult(position, fence_of(claims), b'{"x":1}', True, position, mark)])


def open_page_of_spared(stage):
    """Of a job that was resumed: one unit has a score already, and one is not needed."""
    results = {0: b'{"x":1}', 1: b'{"x":2}'}
    marks = [(0, 1016), (1, 2)]
    return stage.one.open_page(REF, 0, 4, "", 1, {}, results, "attempt", skipped=1, marks=marks)


def defer(ledger, position, claims=1, delay_ms=0, unpaid=0):
    deferral = Deferral(position, fence_of(claims), 1, 0, unpaid)
    return ledger.defer(REF, {"calls": 1, "retries": 1}, [deferral], [Due(MessageId(position), delay_ms)])


async def overdue(stage):
    return [member async for member in stage.two.overdue(stage.two.keys.watch, 30_000)]


async def put_items(stage):
    await stage.one.put_items("j", 0, [Item(id="a", text="b")])


JOB = SimpleNamespace(id="j", incarnation="i")
STOP = Stop(pool="p", model="m", kind="not_asked", after=2, status_code=401, message="401")


async def refuse(stage, unit, units=2):
    return await stage.asking.failed(JOB, unit, 0, "rejected|401", STOP, units=units, items=1)


async def one_refused(stage):
    await page_open(stage)
    await refuse(stage, "0.0.0")


async def stopped_asking(stage):
    await one_refused(stage)
    await refuse(stage, "0.0.1")


async def answer(ledger):
    return await ledger.answer(await ledger.job("j"), b'{"state":"yes"}')


async def answered(stage):
    await more_to_come(stage)
    await answer(stage.one)


BOUNDS = Bounds(unit_ms=5000, finish_in_ms=60_000, finish_at_ms=START_MS + 90_000, pool_down_ms=20_000)
ONLINE = RoadChange(pool="p", message="there is no time for a batch")
REFUSED = DroppedParameter(pool="p", model="m", name="seed", message="it knows no seed")
DOWN = Stop(pool="p", model="m", kind="pool_down", after=0, status_code=None, message="pool 'p' has been down for 20 s")


async def bounded(stage):
    submit(stage)
    await stage.one.start("j", 5, 0, BOUNDS)


async def expired(stage):
    await bounded(stage)
    await open_page(stage)
    await stage.one.published(REF)
    await claim(stage.one, 0)
    await defer(stage.one, 0, delay_ms=50_000)
    stage.clock.ms += 5000


CASES = [
    ("start", submitted, lambda s: s.one.start("j", 5, 0, BOUNDS)),
    ("bounds", bounded, lambda s: s.one.bounds("j")),
    ("bounds", running, lambda s: s.one.bounds("j")),
    ("bounds", completed, lambda s: s.one.bounds("j")),
    ("claim", expired, lambda s: claim(s.one, 0)),
    ("claim", expired, lambda s: claim(s.two, 1)),
    ("claim", waiting, lambda s: s.one.claim(REF, MessageId(0), [0], 0, early=True)),
    (
        "defer",
        claimed,
        lambda s: s.one.defer(REF, {}, [Deferral(0, fence_of(), 0, 0, probe=1)], [Due(MessageId(0), 5)]),
    ),
    ("drop", page_open, lambda s: s.asking.drop(JOB, REFUSED)),
    ("go_online", page_open, lambda s: s.one.go_online(JOB, 0, ONLINE)),
    ("give_up", page_open, lambda s: s.asking.give_up(JOB, DOWN)),
    ("give_up", stopped_asking, lambda s: s.asking.give_up(JOB, STOP.model_copy(update={"after": 7}))),
    ("stop_asking", page_open, lambda s: refuse(s, "0.0.0")),
    ("stop_asking", page_open, lambda s: refuse(s, "0.0.0", units=1)),
    ("stop_asking", one_refused, lambda s: refuse(s, "0.0.0")),
    ("stop_asking", one_refused, lambda s: refuse(s, "0.0.1")),
    ("stop_asking", stopped_asking, lambda s: refuse(s, "0.0.2")),
    ("mark_answered", one_refused, lambda s: s.asking.mark_answered(JOB, STOP.place)),
    ("silence", stopped_asking, lambda s: s.asking.silence("j")),
    ("exhaust", running, lambda s: s.asking.exhaust("p", 1000)),
    ("restored", running, lambda s: s.asking.restored("p")),
    ("waits", running, lambda s: s.one.waits("j", "for nobody")),
    ("waits", nothing, lambda s: s.one.waits("j", "for nobody")),
    ("submit", nothing, submit),
    ("submit", submitted, submit),
    ("cancel", submitted, lambda s: s.client.cancel("j")),
    ("cancel", due_now, lambda s: s.client.cancel("j")),
    ("cancel", waiting, lambda s: s.client.cancel("j")),
    ("cancel", completed, lambda s: s.client.cancel("j")),
    ("revoke_unit", page_open, lambda s: s.client.revoke_unit(REF, MessageId(0))),
    ("revoke_unit", waiting, lambda s: s.client.revoke_unit(REF, MessageId(0, batch=True))),
    ("revoke_unit", claimed, lambda s: s.client.revoke_unit(REF, MessageId(0))),
    ("revoke_unit", heir_done, lambda s: s.client.revoke_unit(REF, MessageId(0))),
    ("revoke_unit", late_and_gone, lambda s: s.client.revoke_unit(REF, MessageId(0))),
    ("claim", revoked, lambda s: claim(s.two, 0)),
    ("resume", completed, lambda s: s.client.resume("j")),
    ("resume", running, lambda s: s.client.resume("j")),
    ("start", submitted, lambda s: s.one.start("j", 5)),
    ("start", resumed, lambda s: s.one.start("j", 5, 1)),
    ("start", resumed, lambda s: s.one.start("j", 5, 0)),
    ("attended", running, lambda s: s.one.attended("j")),
    ("claim_finish", finishing, lambda s: s.one.claim_finish("j")),
    ("claim_finish", finishing, lambda s: s.two.claim_finish("j")),
    ("complete", finishing, lambda s: s.one.complete("j", NOW, b"{}", 60)),
    ("finish_failed", finishing, lambda s: finish_failed(s.one)),
    ("finish_failed", finishing, lambda s: finish_failed(s.one, tries=1)),
    ("finish_failed", stuck, lambda s: finish_failed(s.two)),
    ("finish_failed", completed, lambda s: finish_failed(s.one)),
    ("cancel", stuck, lambda s: s.client.cancel("j", "no more")),
    ("cancel", finishing, lambda s: s.client.cancel("j")),
    ("delete", submitted, lambda s: s.client.delete("j")),
    ("delete", completed, lambda s: s.client.delete("j")),
    ("delete", announced, lambda s: s.client.delete("j")),
    ("resume", stuck, lambda s: s.client.resume("j")),
    ("complete", stuck, lambda s: s.one.complete("j", NOW, b"{}", 60, keep_items=True)),
    ("complete", completed, lambda s: s.two.complete("j", NOW, b"{}", 60)),
    ("announced", completed, lambda s: s.one.announced("j")),
    ("mark_lost", nothing, lambda s: s.one.mark_lost("j", FACTS, 60)),
    ("mark_lost", submitted, lambda s: s.one.mark_lost("j", FACTS, 60)),
    ("planned", told_to_plan, lambda s: s.one.planned("j", 0)),
    ("put_items", resumed, put_items),
    ("open_page", running, open_page),
    ("open_page", more_to_come, lambda s: open_page(s, ref=REF._replace(page=1))),
    ("open_page", page_open, lambda s: open_page(s, ref=REF._replace(page=2))),
    ("open_page", running, open_page_of_spared),
    ("published", page_open, lambda s: s.one.published(REF)),
    ("look_soon", page_open, lambda s: s.one.look_soon()),
    ("claim", page_open, lambda s: claim(s.one, 0)),
    ("claim", claimed, lambda s: claim(s.one, 0)),
    ("claim", claimed, lambda s: claim(s.two, 0)),
    ("claim", claimed, lambda s: claim(s.two, 0, again_ms=16_000)),
    ("claim", owner_dead, lambda s: claim(s.two, 0)),
    ("claim", lambda s: owner_dead(s, spend="at_most_once"), lambda s: claim(s.two, 0)),
    ("claim", disowned, lambda s: claim(s.one, 0)),
    ("claim", waiting, lambda s: claim(s.one, 0)),
    ("claim", due_now, lambda s: claim(s.two, 1)),
    ("claim", cancelling, lambda s: claim(s.two, 1)),
    ("claim", heir_done, lambda s: claim(s.two, 0)),
    ("claim", late_and_gone, lambda s: claim(s.two, 0)),
    ("assign", page_open, lambda s: s.one.assign(REF, {MessageId(0): "p", MessageId(1): "q"})),
    ("record", claimed, lambda s: record(s.one, [0])),
    ("record", claimed, lambda s: mark(s.one, 0)),
    ("record", owner_dead_and_heir, lambda s: mark(s.one, 0)),
    ("record", owner_dead_and_heir, lambda s: record(s.one, [0])),
    ("record", owner_dead_and_heir, lambda s: record(s.two, [0], claims=2)),
    ("record", heir_done, lambda s: record(s.one, [0])),
    ("record", heir_done, lambda s: record(s.two, [0], claims=2)),
    ("record", late_and_gone, lambda s: record(s.one, [0])),
    ("record", late_and_gone, lambda s: record(s.two, [0], claims=2)),
    ("record", page_open, lambda s: record(s.one, [0], claims=-5)),
    ("record", page_open, lambda s: record(s.one, [0])),
    ("record", last_but_one, lambda s: record(s.one, [2])),
    ("record", gathered_by_nobody, lambda s: record(s.one, [3])),
    ("record", disowned, lambda s: record(s.one, [0])),
    ("record", waiting, lambda s: record(s.one, [0])),
    ("defer", claimed, lambda s: defer(s.one, 0)),
    ("defer", claimed, lambda s: defer(s.one, 0, delay_ms=5000, unpaid=1)),
    ("defer", owner_dead_and_heir, lambda s: defer(s.one, 0)),
    ("defer", heir_done, lambda s: defer(s.one, 0)),
    ("defer", late_and_gone, lambda s: defer(s.one, 0)),
    ("defer", page_open, lambda s: defer(s.one, 0)),
    ("defer", page_open, lambda s: defer(s.one, 0, claims=-5)),
    ("defer", waiting, lambda s: defer(s.one, 0, unpaid=1)),
    ("cancel_batch", batch_formed, lambda s: s.client.cancel_batch("@b")),
    ("take_due", due_now, lambda s: s.one.take_due()),
    ("take_page", whole, lambda s: s.one.take_page(REF)),
    ("take_page", page_open, lambda s: s.one.take_page(REF)),
    ("close_page", whole, lambda s: s.one.close_page(REF, 1)),
    ("close_page", whole_but_late, lambda s: s.one.close_page(REF, 1)),
    ("close_page", more_to_come, lambda s: s.one.close_page(REF, 1)),
    ("close_page", unwritable, lambda s: s.one.close_page(REF, 1)),
    ("close_page", unwritable, lambda s: s.one.close_page(REF, 1, KEPT)),
    ("close_page", given_up, lambda s: s.one.close_page(REF, 1, KEPT)),
    ("close_page", kept, lambda s: s.two.close_page(REF, 1, KEPT)),
    ("gather_failed", whole, lambda s: gather_failed(s.one)),
    ("gather_failed", whole, lambda s: gather_failed(s.one, tries=1)),
    ("gather_failed", unwritable, lambda s: gather_failed(s.two)),
    ("gather_failed", given_up, lambda s: gather_failed(s.one)),
    ("gather_failed", completed, lambda s: gather_failed(s.one)),
    ("gather_failed", nothing, lambda s: gather_failed(s.one)),
    ("forget_kept", kept, lambda s: s.one.forget_kept(REF)),
    ("complete", kept, lambda s: s.one.complete("j", NOW, b"{}", 60)),
    ("resume", ended_with_kept, lambda s: s.client.resume("j")),
    ("delete", ended_with_kept, lambda s: s.client.delete("j")),
    ("find_lost", page_open, lambda s: s.one.find_lost(REF, 1, queue_empty=True)),
    ("find_lost", stands_still, lambda s: s.one.find_lost(REF, 1, queue_empty=True)),
    ("find_lost", whole, lambda s: s.one.find_lost(REF, 1, queue_empty=True)),
    ("release_claims", claimed, lambda s: s.one.release_claims(REF, {0: fence_of(), 1: fence_of()})),
    ("answer", running, lambda s: answer(s.one)),
    ("answer", more_to_come, lambda s: answer(s.one)),
    ("answer", answered, lambda s: answer(s.two)),
    ("answer", cancelling, lambda s: answer(s.two)),
    ("open_page", answered, lambda s: open_page(s, ref=REF._replace(page=1))),
    ("resume", answered, lambda s: s.client.resume("j")),
    ("ripe", cancelling, lambda s: s.one.ripe("j")),
    ("ripe", cancelling_and_idle, lambda s: s.one.ripe("j")),
    ("ripe", completed, lambda s: s.one.ripe("j")),
    ("lead", nothing, lambda s: s.one.lead(60_000)),
    ("may_spread", nothing, lambda s: s.client.may_spread(900)),
    ("led", nothing, lambda s: s.one.led(60_000)),
    ("overdue", all_overdue, overdue),
    ("continue_with", submitted, lambda s: s.client.continue_with("j", "t", "{}")),
]
READS = {
    "job", "attempt", "now_ms", "wall_ms", "progress", "unfinished", "facts", "lane", "lane_stages", "items",
    "items_within", "item_count", "pool_rate", "list_claims", "open_pages", "unannounced", "keys", "is_free",
    "awaits_start", "older", "count_unfinished",
    "status", "jobs", "open_calls", "stops", "load", "dropped", "exhausted", "pools", "continuations", "unended",
    "assignments", "job_of_task", "may_call", "incarnation", "unfinished_pools", "is_revoked",
    "scoreboard", "first_pages", "submitted_job", "capped", "budget_reason", "books",
    "left_ms", "calls_left", "by_batches", "went_online",
    "batches", "batches_over", "has_open_question", "question_state", "standings", "kept_pages", "kept_page",
    "job_books", "layout", "item_metadata",
}  # fmt: skip


@pytest.mark.parametrize(("verb", "before", "act"), CASES, ids=[f"{n}-{verb}" for n, (verb, *_) in enumerate(CASES)])
async def test_a_verb_whose_answers_are_lost(redis_url, monkeypatch, verb, before, act):
    found = []
    for repeats in (0, 1, 3):
        numbers = itertools.count()
        monkeypatch.setattr(secrets, "token_hex", lambda n, numbers=numbers: f"{next(numbers):0{2 * n}x}")
        stage = Stage(redis_url)
        stage.redis.flushdb()
        stage = Stage(redis_url)
        await before(stage)
        untouched = stage.dump()
        stage.from_now_on(lambda repeats=repeats: repeats)
        answer = act(stage)
        answer = await answer if hasattr(answer, "__await__") else answer
        if isinstance(answer, Recorded):
            answer = replace(answer, news=True)  # of this very command
        found.append((answer, stage.dump(), untouched))
        await stage.close()
    once, *again = found
    for more in again:
        assert more[2] == once[2], "the states before are the same"
        assert more[0] == once[0]
        assert more[1] == once[1]


def test_every_verb_is_a_case():
    """One that is new has to say what happens when its answer is lost."""
    verbs = {name for cls in (*Ledger.__mro__[:-1], LedgerClient, StopStore) for name in vars(cls) if name[0] != "_"}
    verbs = {name for name in verbs if "mutmut" not in name}  # its variants stand beside the verbs
    verbs = verbs - READS - {"failed", "may_recheck"} | {"stop_asking"}
    assert verbs == {verb for verb, *_ in CASES}
    files = Path(dicast.app.ledger.__file__).parent.glob("*.lua")
    scripts = {path.stem for path in files if path.read_text().startswith("#!lua")}
    of_batches = {"take_batch", "write_batch"}  # tests/ledger/test_batches.py
    assert scripts - {"list_claims"} - of_batches <= {verb for verb, *_ in CASES}


async def test_the_states_before_are_what_they_say(redis_url):
    """A case that meets nothing of what it is about would show nothing."""
    for before, states in (
        (cancelling_and_idle, JobState.CANCELLING), (resumed, JobState.SUBMITTED), (late_and_gone, JobState.FINISHING),
    ):  # fmt: skip
        stage = Stage(redis_url)
        stage.redis.flushdb()
        stage = Stage(redis_url)
        await before(stage)
        assert stage.client.status("j").state is states
        await stage.close()
