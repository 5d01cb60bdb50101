"""What an operator does while it runs, and what becomes of limits when nobody decides; the provider's count tells."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from dicast.workers.admission.governor import Governor
from dicast.workers.store.connection import connect_async
from tests import processes
from tests.e2e.cluster import ROOT, a_job, until
from tests.e2e.test_governor import POOL, pool_state

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def wish(cluster, **wishes):
    async def set_it():
        async with connect_async(cluster.app.store_url) as client:
            await Governor(client, cluster.app.keys, cluster.app.configured_overrides).set("sim", **wishes)

    asyncio.run(set_it())


def test_a_limit_set_below_the_open_calls_lets_them_finish_and_admits_none(cluster):
    c = cluster("--latency", "3", "--sigma", "0", pools=POOL + "limit = 8\nadaptive = false\n",
                MAX_CONCURRENT_LLM_CALLS="8")  # fmt: skip
    c.worker()
    job_id = c.submit(a_job(agents=1, items=4))
    until(lambda: c.provider.stats()["open"] == 8, "eight calls are open")
    wish(c, limit=3)
    at_set = c.provider.stats()
    assert at_set["open"] == 8, "they were not cut"
    while (now := c.provider.stats())["open"] > 3:
        assert now["calls"] == at_set["calls"], "one was admitted over the limit"
    assert now["by_status"] == {"200": now["calls"] - now["open"]}
    c.provider.control(reset=True)
    until(lambda: c.provider.stats()["calls"] >= 6, "six more calls")
    assert c.provider.stats()["max_open"] == 3
    wish(c, limit=None)
    until(lambda: c.provider.stats()["open"] == 8, "eight calls are open again")
    c.provider.control(latency=0.1, answer=True)
    assert c.report(job_id)["scored"] == 40
    assert c.provider.stats()["max_open"] == 8
    reasons = [(line["from"], line["to"], line["reason"]) for line in pool_state(c).changes]
    assert reasons == [(3, 8, "set by the operator"), (8, 3, "set by the operator")]


def beat(cluster, name):
    command = ["celery", "-A", "app", "beat", "--pidfile=", "-s", str(cluster.folder / name)]
    log = (cluster.folder / f"{name}.log").open("wb")
    with log:
        return processes.start(command, cluster.environ, ROOT, log.fileno(), log.fileno())


def test_of_two_beats_and_two_workers_one_leads_at_any_time(cluster):
    """Each decision goes on from the one before, whoever made it: the changes form one chain, each told once."""
    c = cluster("--cap", "4", "--latency", "0.15", pools=POOL, MAX_CONCURRENT_LLM_CALLS="40",
                DICAST_REQUEUE_BUDGET="50")  # fmt: skip
    beats = [beat(c, f"beat{n}") for n in range(2)]
    try:
        c.worker()
        c.worker()
        for _ in range(8):  # a slow machine decides less often while a job runs
            assert c.report(c.submit(a_job(agents=2, items=6)))["scored"] == 120
            if len(pool_state(c).changes) > 2:
                break
        for n in range(2):
            until(lambda n=n: b"governor" in (c.folder / f"beat{n}.log").read_bytes(), "each beat has sent its tick")
    finally:
        for process in beats:
            process.terminate()
            process.wait(timeout=20)
    told = sorted((line for line in c.logs() if line["event"] == "limit_changed"), key=lambda line: line["at"])
    kept = list(reversed(pool_state(c).changes))
    assert [(k["at"], k["from"], k["to"]) for k in kept] == [(t["at"], t["from"], t["to"]) for t in told]
    assert len(kept) > 2
    assert all(later["from"] == earlier["to"] for earlier, later in itertools.pairwise(kept))


def test_when_nobody_decides_the_last_limit_holds_and_then_the_floor(cluster):
    """A wish that no operator can have set keeps every governor from deciding; then the lease clock is moved."""
    c = cluster("--latency", "0.2", pools=POOL, MAX_CONCURRENT_LLM_CALLS="20")
    c.worker()
    wish(c, limit=6, floor=2, adaptive=False)
    c.report(c.submit(a_job(agents=1, items=2)))
    c.app.store.hset(c.app.keys.overrides, "sim", '{"limit": 0}')
    c.provider.control(reset=True)
    assert c.report(c.submit(a_job(agents=1, items=4)))["scored"] == 40
    assert c.provider.stats()["max_open"] == 6
    c.quiet()
    c.app.store.hincrby(c.app.keys.clock, "now", 61_000)
    c.provider.control(reset=True)
    assert c.report(c.submit(a_job(agents=1, items=2)))["scored"] == 20
    assert c.provider.stats()["max_open"] == 2
    assert any(line["level"] == "ERROR" and "no decision for pool sim" in line["message"] for line in c.logs()
               if line["event"] == "log")  # fmt: skip
