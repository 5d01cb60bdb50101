"""A unit that is revoked ends without a call, whoever claims it and whenever; its job goes on."""

import pytest

from dicast.app.ledger.client import UnknownJob
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import ClaimVerdict, Deferral, Due, MessageId, UnitState
from tests.ledger.bench import a_job, claim, record


async def test_a_unit_that_waits_is_recorded_as_revoked_by_its_next_claim(bench):
    ref = await bench.started()
    assert bench.client.revoke_unit(ref, MessageId(1)) == [UnitState.REVOKED]
    assert not await bench.one.may_call(ref, [1])
    refused = await claim(bench.one, ref, 1)
    assert (refused.verdict, refused.calls) == (ClaimVerdict.REVOKED, 0)
    assert (await record(bench.one, ref, refused, scored=False)).remaining == 3
    assert (await claim(bench.one, ref, 0)).verdict is ClaimVerdict.RUN
    assert bench.client.revoke_unit(ref, MessageId(1)) == [UnitState.ENDED]


async def test_one_that_waits_for_its_retry_is_due_at_once(bench):
    ref = await bench.started()
    mine = await claim(bench.one, ref, 0)
    await bench.one.defer(ref, {"calls": 1}, [Deferral(0, mine.fence, 1, 0)], [Due(MessageId(0), 60_000)])
    assert await bench.one.take_due() == []
    assert bench.client.revoke_unit(ref, MessageId(0)) == [UnitState.REVOKED]
    assert await bench.one.take_due() == [(ref, MessageId(0))]
    assert (await claim(bench.two, ref, 0)).verdict is ClaimVerdict.REVOKED


async def test_an_open_call_ends_and_counts_and_is_not_made_again(bench):
    ref = await bench.started()
    mine, other = await claim(bench.one, ref, 0), await claim(bench.one, ref, 1)
    assert bench.client.revoke_unit(ref, MessageId(0)) == [UnitState.OPEN]
    assert (await claim(bench.two, ref, 0)).verdict is ClaimVerdict.OWNED
    assert (await record(bench.one, ref, mine)).remaining == 3
    bench.client.revoke_unit(ref, MessageId(1))
    await bench.one.defer(ref, {"calls": 1}, [Deferral(1, other.fence, 1, 0)], [Due(MessageId(1), 0)])
    assert await bench.one.take_due() == [(ref, MessageId(1))]
    assert (await claim(bench.two, ref, 1)).verdict is ClaimVerdict.REVOKED


async def test_one_whose_worker_died_has_no_second_call(bench):
    ref = await bench.started()
    await claim(bench.one, ref, 0)
    bench.kill(0)
    assert bench.client.revoke_unit(ref, MessageId(0)) == [UnitState.REVOKED]
    assert (await claim(bench.two, ref, 0)).verdict is ClaimVerdict.REVOKED
    assert bench.client.status("j").counters["possible_double_charges"] == 0


async def test_a_batch_is_revoked_with_all_its_units_and_one_of_them_alone(bench):
    ref = await bench.started(batched=True)
    assert bench.client.revoke_unit(ref, MessageId(0, batch=True)) == [UnitState.REVOKED] * 2
    bench.client.revoke_unit(ref, MessageId(3))
    _, _, first = await bench.one.claim(ref, MessageId(0, batch=True), [0, 1], 0)
    _, _, second = await bench.one.claim(ref, MessageId(2, batch=True), [2, 3], 1)
    assert [c.verdict for c in (*first, *second)] == [
        ClaimVerdict.REVOKED,
        ClaimVerdict.REVOKED,
        ClaimVerdict.RUN,
        ClaimVerdict.REVOKED,
    ]


async def test_what_is_not_in_work_is_said(bench):
    ref = await bench.started()
    assert bench.client.revoke_unit(ref._replace(page=1), MessageId(4)) == [UnitState.GONE]
    assert bench.client.revoke_unit(ref, MessageId(4)) == [UnitState.GONE]
    for other in (ref._replace(incarnation="other"), ref._replace(job="other"), ref._replace(lane=1)):
        with pytest.raises(UnknownJob):
            bench.client.revoke_unit(other, MessageId(0))
    bench.client.cancel("j")
    assert bench.client.revoke_unit(ref, MessageId(0)) == [UnitState.CANCELLED]
    assert (await claim(bench.one, ref, 0)).verdict is ClaimVerdict.CANCELLED


async def test_at_most_once_tells_of_the_call_that_may_have_been_paid(bench):
    ref = await bench.started(a_job(spend="at_most_once"))
    await claim(bench.one, ref, 0)
    bench.kill(0)
    bench.client.revoke_unit(ref, MessageId(0))
    assert (await claim(bench.two, ref, 0)).verdict is ClaimVerdict.UNKNOWN


def test_a_canvas_name_is_its_jobs(bench):
    bench.submit(a_job())
    bench.client.continue_with("j", "given", "{}")
    assert (bench.client.job_of_task("j"), bench.client.job_of_task("given")) == ("j", "j")
    with pytest.raises(UnknownJob):
        bench.client.job_of_task("other")


@pytest.mark.parametrize(("name", "token"), [("a.b~x1.0.2", ""), ("a.b~x1.0.2.7", "7"), ("a.b~x1.0.2.b8", "b8")])
def test_names_of_pages_and_messages(name, token):
    ref, found = PageRef.of_name(name)
    assert (ref, found) == (PageRef("a.b", "x1", 0, 2), token)
    assert ref.name + (f".{token}" if token else "") == name


@pytest.mark.parametrize("name", ["", "job", "job~x", "job~x.1", "~x.0.0", "job~x.0.0.c1", "j~x.0.0.1.2", "J~X.0.0"])
def test_what_names_no_page(name):
    with pytest.raises(ValueError, match="names no page"):
        PageRef.of_name(name)
