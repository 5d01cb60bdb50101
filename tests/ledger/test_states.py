"""Every verb that ends a job or has it go on, in every state: what comes of it, or that nothing at all does."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import JobState
from dicast.app.ledger.troubles import Troubles
from dicast.app.pipeline.job_faults import DISK_TRIES, TRIES, JobFaults
from tests.ledger.bench import KEYS, a_job

FACTS = {"project": "p", "units": "4", "created_ms": "1"}


# ------------------------------------------------------------------------------------------------------------- states
async def submitted(bench: Any) -> None:
    bench.submit(a_job())


async def running(bench: Any) -> None:
    await bench.started()


async def idle(bench: Any) -> None:
    """It runs, and nothing of it is published yet."""
    bench.submit(a_job())
    await bench.one.start("j", 5)


async def cancelling(bench: Any) -> None:
    await bench.started()
    bench.client.cancel("j", "the first reason")


async def finishing(bench: Any) -> None:
    await idle(bench)
    bench.redis.hset(bench.one.keys.job("j"), mapping={"state": "finishing", "outcome": "completed"})
    assert await bench.one.claim_finish("j")


async def stuck(bench: Any) -> None:
    await finishing(bench)
    assert await bench.one.finish_failed("j", "a page is damaged", TRIES, TRIES) == (True, False)


async def stuck_cancelled(bench: Any) -> None:
    bench.submit(a_job())
    bench.client.cancel("j", "the first reason")
    assert await bench.one.finish_failed("j", "a full disk", DISK_TRIES, TRIES) == (True, False)


async def completed(bench: Any) -> None:
    await finishing(bench)
    assert await bench.one.complete("j", bench.incarnation("j"), b"{}", 60)


async def cancelled(bench: Any) -> None:
    await submitted(bench)
    bench.client.cancel("j", "the first reason")
    assert await bench.one.complete("j", bench.incarnation("j"), b"{}", 60)


async def lost(bench: Any) -> None:
    assert await bench.one.mark_lost("j", FACTS, 60)


# -------------------------------------------------------------------------------------------------------------- verbs
async def cancel(bench: Any) -> None:
    bench.client.cancel("j")


async def revoke(bench: Any) -> None:
    bench.client.cancel("j", revoked="revoked")


async def resume(bench: Any) -> None:
    bench.client.resume("j")


async def expire(bench: Any) -> None:
    """It should have been started an hour ago."""
    if bench.redis.hget(bench.one.keys.job("j"), "state") == JobState.SUBMITTED:
        bench.redis.hset(bench.one.keys.job("j"), "expires_ms", 1)
    _, started, expired = await bench.one.start("j", 5)
    if expired:
        bench.client.cancel("j", "it was not started in time", revoked="expired")
    assert not started


async def later(bench: Any) -> None:
    """Eleven seconds, by the lease clock."""
    now = int(await bench.asyncs.hget(KEYS.clock, "now") or 0)
    await bench.asyncs.hset(KEYS.clock, mapping={"now": now + 11_000, "seen": 0})


async def fault_limit(bench: Any) -> None:
    """Planning, or a page, fails five times for the same lasting reason."""
    faults = JobFaults(Troubles(bench.asyncs, KEYS), bench.client)
    for _ in range(TRIES):
        await later(bench)
        await faults.note("j", OSError("no such file"))


async def finish_limit(bench: Any) -> None:
    """Finishing fails five times, each time for another reason."""
    for n in range(TRIES):
        await later(bench)
        await bench.one.finish_failed("j", f"reason {n}", TRIES, TRIES)


class After(NamedTuple):
    """What is so afterwards, where anything changes."""

    state: str
    outcome: str | None = None
    why: str | None = None
    salvage: str | None = None
    revoked: str | None = None


GIVEN_UP = "OSError: no such file"
FIRST = "the first reason"
CALLED_OFF = After("finishing", "cancelled")
SALVAGED = After("finishing", "cancelled", "a page is damaged", "1")
NOTHING = None
STATES = (submitted, idle, running, cancelling, finishing, stuck, stuck_cancelled, completed, cancelled, lost)
TABLE = {
    cancel: {
        submitted: CALLED_OFF, idle: CALLED_OFF, running: After("cancelling", "cancelled"), stuck: SALVAGED,
        stuck_cancelled: After("finishing", "cancelled", FIRST, "1"),
    },
    revoke: {
        submitted: CALLED_OFF._replace(revoked="revoked"), idle: CALLED_OFF._replace(revoked="revoked"),
        running: After("cancelling", "cancelled", revoked="revoked"), stuck: SALVAGED._replace(revoked="revoked"),
        stuck_cancelled: After("finishing", "cancelled", FIRST, "1", "revoked"),
    },
    expire: {submitted: After("finishing", "cancelled", "it was not started in time", revoked="expired")},
    fault_limit: {
        submitted: CALLED_OFF._replace(why=GIVEN_UP), idle: CALLED_OFF._replace(why=GIVEN_UP),
        running: After("cancelling", "cancelled", GIVEN_UP), stuck: SALVAGED._replace(why=GIVEN_UP),
        stuck_cancelled: After("finishing", "cancelled", GIVEN_UP, "1"),
    },
    finish_limit: {
        finishing: After("finishing", "cancelled", "reason 4", "1"),
        stuck: After("finishing", "cancelled", "reason 3", "1"),
        stuck_cancelled: After("finishing", "cancelled", FIRST, "1"),
    },
    resume: {completed: After("submitted"), cancelled: After("submitted")},
}  # fmt: skip
CELLS = [(state, verb, results.get(state, NOTHING)) for verb, results in TABLE.items() for state in STATES]


def record(bench: Any) -> dict[str, str]:
    found: dict[str, str] = bench.redis.hgetall(bench.one.keys.job("j"))
    return found


@pytest.mark.parametrize(("state", "verb", "after"), CELLS, ids=[f"{s.__name__}-{v.__name__}" for s, v, _ in CELLS])
async def test_a_verb_in_a_state(bench: Any, state: Any, verb: Any, after: After | None) -> None:
    await state(bench)
    before = record(bench)
    await verb(bench)
    found = record(bench)
    if after is None:
        assert found == before
    else:
        assert After(*(found.get(name) for name in After._fields)) == after
        unended = bench.redis.zscore(bench.one.keys.unfinished, "j")
        assert unended is not None, "somebody looks after it"
        assert int(bench.redis.ttl(bench.one.keys.job("j"))) == -1


@pytest.mark.parametrize("state", [s for s in STATES if s is not lost], ids=lambda s: s.__name__)
async def test_every_state_leads_to_an_end_and_from_there_on_again(bench: Any, state: Any) -> None:
    """Whatever it was in, a cancelled job ends, once its pages are gathered; and it is resumed from any end."""
    await state(bench)
    bench.client.cancel("j")
    if record(bench)["state"] == JobState.CANCELLING:
        ref = PageRef("j", bench.incarnation("j"), 0, 0)
        bench.redis.hset(bench.one.keys.page(ref), "left", 0)
        assert await bench.one.close_page(ref, 1) == (True, False)
    await bench.two.complete("j", bench.incarnation("j"), b"{}", 60)
    status = bench.client.status("j")
    assert status.state.ended
    assert bench.redis.zscore(bench.one.keys.unfinished, "j") is None
    assert bench.client.resume("j") is status.state
    left = {
        "outcome",
        "why",
        "waits_for",
        "stuck",
        "salvage",
        "finish_tries",
        "gather_tries",
        "gather_failer",
        "failer",
        "finisher",
        "revoked",
        "report",
    }
    assert not left & record(bench).keys()
    assert (await bench.one.start("j", 5, 1)).started


async def test_failures_of_a_moment_are_one_try_and_the_last_reason_is_told(bench: Any) -> None:
    await finishing(bench)
    for n in range(3 * TRIES):
        assert await bench.two.finish_failed("j", f"reason {n}", TRIES, TRIES) == (True, False)
    assert bench.client.status("j").waits_for == f"reason {3 * TRIES - 1}"
    assert record(bench)["finish_tries"] == "1"
    assert record(bench)["finisher"] == bench.nodes[0].id, "which is at it, and alive"
    await bench.one.finish_failed("j", "mine", TRIES, TRIES)
    assert await bench.two.claim_finish("j")
