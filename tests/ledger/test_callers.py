"""What callers are told of jobs, and what they may do with them."""

from __future__ import annotations

import pickle
import time

import pytest

from dicast.app.domain.plan import STANDARD
from dicast.app.ledger import client
from dicast.app.ledger.client import COUNTERS, JobConflict, JobLost, UnknownJob, digest_of
from dicast.app.ledger.records import Ended, JobState
from dicast.app.ledger.troubles import Troubles
from tests.ledger.bench import KEYS, a_job, claim, record


async def test_a_status_says_all_there_is(bench):
    ref = await bench.started()
    await record(bench.one, ref, await claim(bench.one, ref, 0))
    status = bench.client.status("j")
    assert (status.id, status.state, status.project, status.units, status.limit) == ("j", "running", "default", 4, 5)
    assert {name: n for name, n in status.counters.items() if n} == {"done": 1, "scored": 1, "calls": 1, "published": 4}
    assert set(status.counters) == set(COUNTERS) and status.done == 1
    assert abs(status.created_ms - 1000 * time.time()) < 60_000 and status.started_ms >= status.created_ms
    assert (status.finished_ms, status.report, status.why, status.waits_for) == (None, None, None, None)
    for ask in (bench.client.status, bench.client.pools, bench.client.cancel, bench.client.resume):
        with pytest.raises(UnknownJob, match="no job 'another'"):
            ask("another")


@pytest.mark.parametrize("age_ms, shown", [(0, "the disk is full"), (client.WAITS_SHOWN_MS + 5000, None)])
async def test_a_trouble_is_shown_while_it_is_met(bench, age_ms, shown):
    await bench.started()
    await bench.one.waits("j", "the disk is full")
    await bench.asyncs.hset(bench.one.keys.job("j"), "waits_ms", bench.client.wall_ms() - age_ms)
    assert bench.client.status("j").waits_for == shown
    assert [status.waits_for for status in bench.client.jobs()] == [shown]


async def test_a_trouble_that_a_sweeper_met_is_shown_until_the_job_ends(bench):
    await bench.started()
    await Troubles(bench.asyncs, KEYS).note("j", "its pool is gone")
    assert bench.client.status("j").waits_for == "its pool is gone"
    await bench.asyncs.hset(
        bench.one.keys.job("j"), mapping={"state": "cancelled", "waits_for": "x", "waits_ms": 10**13}
    )
    assert bench.client.status("j").waits_for is None


async def test_a_completed_job_says_when_and_with_what(bench):
    ref = await bench.started(a_job(items=1, dimensions=1), units=1)
    await record(bench.one, ref, await claim(bench.one, ref, 0))
    assert await bench.one.close_page(ref, 1) == (True, False)
    assert await bench.one.complete("j", ref.incarnation, b'{"a":1}', 60)
    status = bench.client.status("j")
    assert (status.state, status.report) == (JobState.COMPLETED, {"a": 1})
    assert status.created_ms <= status.started_ms <= status.finished_ms < status.started_ms + 60_000


async def test_the_record_of_a_resumed_job_expires_no_more(bench):
    """It would vanish while the job runs."""
    ref = await bench.started(a_job(items=1, dimensions=1), units=1)
    await record(bench.one, ref, await claim(bench.one, ref, 0))
    await bench.one.close_page(ref, 1)
    await bench.one.complete("j", ref.incarnation, b"{}", 60)
    key = bench.one.keys.job("j")
    assert await bench.asyncs.pttl(key) > 0
    assert bench.client.resume("j") == JobState.COMPLETED
    assert await bench.asyncs.pttl(key) == -1


async def test_the_newest_jobs_come_first(bench):
    for n in range(4):
        bench.submit(a_job(f"j{n}"))
        await bench.asyncs.zadd(bench.one.keys.jobs, {f"j{n}": n})
    await bench.asyncs.delete(bench.one.keys.job("j2"))  # past its retention
    assert [status.id for status in bench.client.jobs()] == ["j3", "j1", "j0"]
    assert [status.id for status in bench.client.jobs(newest=3)] == ["j3", "j1"]


async def test_an_id_is_free_while_no_job_has_it_or_a_lost_one(bench):
    assert bench.client.is_free("j") and not bench.client.awaits_start("j")
    bench.submit(a_job())
    assert not bench.client.is_free("j") and bench.client.awaits_start("j")
    await bench.one.start("j", 5)
    assert not bench.client.awaits_start("j")
    await bench.asyncs.hset(bench.one.keys.job("j"), "state", "lost")
    assert bench.client.is_free("j")


async def test_a_jobs_pools_are_named_once_each(bench):
    bench.client.submit(a_job(agents=3), [{"pools": ["p", "q"]}, {"pools": ["q"]}, {"pools": ["r"]}], 12, {})
    assert bench.client.pools("j") == ["p", "q", "r"]


@pytest.mark.parametrize("start_in_ms, want", [(0, STANDARD.unattended_ms), (700, 700)])
async def test_a_submitted_job_is_looked_after_when_its_message_is_late(bench, start_in_ms, want):
    before = await bench.one.now_ms()
    bench.client.submit(a_job(), [], 4, {}, *([start_in_ms] if start_in_ms else []))
    ((_, at),) = await bench.asyncs.zrange(bench.one.keys.unfinished, 0, -1, withscores=True)
    assert want <= at - before < want + 5000
    assert await bench.asyncs.ttl(bench.one.keys.items("j")) == -1


async def test_items_on_their_way_leave_by_themselves(bench):
    bench.client._stage("staged", a_job(items=450).items)
    assert bench.redis.hlen("staged") == 450
    assert client.STAGING_S - 60 < bench.redis.ttl("staged") <= client.STAGING_S


async def test_a_jobs_items_are_kept_once(bench):
    bench.submit(a_job())
    spec = await bench.asyncs.hget(bench.one.keys.job("j"), "spec")
    assert '"items":[]' in spec and "text 0" not in spec


async def test_two_submissions_at_once_do_not_mix_their_items(bench, monkeypatch):
    stage, places = bench.client._stage, []
    monkeypatch.setattr(bench.client, "_stage", lambda key, items: (places.append(key), stage(key, items)))
    bench.submit(a_job("j"))
    bench.submit(a_job("k"))
    assert len(set(places)) == 2
    assert all(place.startswith("{test}:staging:") for place in places)


async def test_continuations_of_an_earlier_job_do_not_follow_the_new_one(bench):
    bench.client.continue_with("j", "t", "after")
    bench.submit(a_job())
    assert await bench.one.continuations("j") == {}
    bench.client.continue_with("j", "t", "after")
    assert bench.submit(a_job()) is False
    assert await bench.one.continuations("j") == {"t": "after"}


def test_a_digest_is_of_the_content():
    job = a_job(items=3)
    assert digest_of(job) == digest_of(type(job).model_validate_json(job.model_dump_json()))
    changed = [a_job(items=2), a_job("k", items=3), a_job(items=3, agents=2), a_job(items=3, project="x")]
    reordered = job.model_copy(update={"items": job.items[::-1]})
    assert len({digest_of(job), digest_of(reordered), *map(digest_of, changed)}) == 6
    notes = {"a": 1, "b": {"c": 2, "d": 3}}
    backwards = {"b": {"d": 3, "c": 2}, "a": 1}
    one, same = (job.model_copy(update={"items": [job.items[0].model_copy(update={"metadata": n})]})
                 for n in (notes, backwards))  # fmt: skip
    assert digest_of(one) == digest_of(same)


async def test_a_cancelled_job_says_why_and_a_resumed_one_no_more(bench):
    await bench.started()
    assert bench.client.cancel("j", why="its file is gone") == (JobState.RUNNING, False)
    assert bench.client.status("j").why == "its file is gone"
    assert bench.client.cancel("j") == (JobState.CANCELLING, False)
    assert bench.client.status("j").why == "its file is gone"
    asking = bench.one.keys.asking("j", bench.incarnation("j"))
    await bench.asyncs.hset(asking, "stopped:p|m", "x")
    assert bench.client.resume("j") == JobState.CANCELLING
    assert await bench.asyncs.exists(asking)
    await bench.asyncs.hset(bench.one.keys.job("j"), "state", "cancelled")
    assert bench.client.resume("j") == JobState.CANCELLED
    assert bench.client.status("j").why is None and not await bench.asyncs.exists(asking)


async def test_what_waited_of_a_cancelled_job_comes_at_once(bench):
    ref = await bench.started()
    await bench.asyncs.zadd(bench.one.keys.due, {f"{ref}|3": 9e15, f"{ref._replace(job='jj')}|3": 9e15})
    bench.client.cancel("j", revoked="terminated")
    due = dict(await bench.asyncs.zrange(bench.one.keys.due, 0, -1, withscores=True))
    assert due[f"{ref}|3"] < 9e15 == due[f"{ref._replace(job='jj')}|3"]
    assert await bench.asyncs.hget(bench.one.keys.job("j"), "revoked") == "terminated"


async def test_open_calls_are_told_by_name(bench):
    await bench.asyncs.hset(KEYS.open, mapping={"all": 3, "p:x": 2})
    assert bench.client.open_calls() == {"all": 3, "p:x": 2}


def test_errors_name_the_job():
    assert [str(error("j")) for error in (UnknownJob, JobConflict, JobLost)] == [
        "no job 'j'",
        "job 'j' was submitted before with other content; choose another id",
        "job 'j' is lost: the store was emptied, or lost its last writes; submit it again",
    ]
    assert [pickle.loads(pickle.dumps(JobLost("j"))).job, JobLost("j").args] == ["j", ("j",)]
    assert [error("j").job for error in (UnknownJob, JobConflict, JobLost)] == ["j"] * 3


@pytest.mark.parametrize("record, want", [
    ({"state": "running"}, None),
    ({"state": "lost"}, Ended(lost=True)),
    ({"state": "completed", "report": '{"a":1}'}, Ended({"a": 1})),
    ({"state": "cancelled", "report": "{}", "revoked": "terminated"}, Ended({}, "terminated")),
    ({}, None),
])  # fmt: skip
def test_a_jobs_end_is_read_from_its_record(record, want):
    assert Ended.from_record(record) == want
