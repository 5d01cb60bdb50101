"""Units whose claim says that they get no call, by verdict; and the pool of a call."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dicast.app.domain.opinion import FailureKind
from dicast.app.domain.panel import Agent, Deployment
from dicast.app.domain.plan import lanes
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import ClaimVerdict
from dicast.app.pipeline.outcomes import UNCLAIMABLE
from dicast.app.providers.base import ProviderFailure
from tests.judge.desk import Scripted, failing
from tests.ledger.bench import a_job

LOST = {ClaimVerdict.POISON: "lost", ClaimVerdict.SPENT: "lost", ClaimVerdict.UNKNOWN: "outcome_unknown"}
WANTED = {
    ClaimVerdict.CANCELLED: "cancelled", ClaimVerdict.REVOKED: "cancelled", ClaimVerdict.EXPIRED: "deadline",
    ClaimVerdict.CAPPED: "capped",
}  # fmt: skip


def test_every_verdict_that_ends_a_unit_is_lost_or_wanted():
    assert set(UNCLAIMABLE) == {*LOST, *WANTED}


@pytest.mark.parametrize("verdict, kind, lost", [
    *((verdict, kind, 1) for verdict, kind in LOST.items()), *((verdict, kind, 0) for verdict, kind in WANTED.items())
])  # fmt: skip
async def test_only_what_nobody_asked_for_is_counted_as_lost(bench, desk, verdict, kind, lost):
    ref = await bench.started(a_job(items=1, dimensions=1), units=1)
    judge = desk(Scripted())
    claimer = judge.judge._claimer
    claim = claimer.claim

    async def answered(*args, **options):
        state, item, claims = await claim(*args, **options)
        return state, item, [replace(claim, verdict=verdict) for claim in claims]

    claimer.claim = answered
    outcome = await judge.do(ref, 0)
    assert outcome.summary.startswith(f"error: {kind}: ")
    assert judge.provider.asked == []
    assert (await judge.results(ref))[0]["error"]["kind"] == kind
    assert bench.client.status("j").counters["lost"] == lost


@pytest.mark.parametrize("deployment, pool", [(0, "p"), (1, "q")])
async def test_a_call_is_of_the_pool_of_the_deployment_that_its_message_names(bench, desk, deployment, pool):
    agent = Agent(name="a", deployments=[Deployment(pool="p", model="m0"), Deployment(pool="q", model="m1")])
    job = a_job(items=1, dimensions=1).model_copy(update={"agents": [agent]})
    bench.client.submit(job, lanes([("p", "q")], 1, 1, [False]), 1, {})
    await bench.one.start("j", 5)
    ref = PageRef("j", bench.incarnation("j"), 0, 0)
    await bench.one.open_page(ref, 0, 1, "", 1, dict(enumerate(await bench.one.items("j", range(1)))))
    rejected = failing(ProviderFailure(FailureKind.REJECTED, "401", status_code=401))
    judge = desk(Scripted(rejected))
    await judge.do(ref, 0, deployment=deployment)
    assert [request.model for request in judge.provider.asked] == [f"m{deployment}"]
    opinion = (await judge.results(ref))[0]["opinion"]
    assert (opinion["pool"], opinion["model"]) == (pool, f"m{deployment}")
