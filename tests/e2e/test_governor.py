"""The governor on real parts: workers and a provider over HTTP whose limits nobody tells; its own count decides.

These are short: `python -m lab.bench.governor_http` measures the full figures.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import urllib.request

import pytest

from dicast.workers.admission.pool_state import PoolStates
from dicast.workers.store.connection import connect_async
from tests.e2e.cluster import a_job, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

POOL = """
[pools.sim]
provider = "simulated"
base_url = "{url}/v1"
"""


def pool_state(cluster):
    async def read():
        async with connect_async(cluster.app.store_url) as client:
            return {state.pool: state for state in await PoolStates(client, cluster.app.keys).all()}

    return asyncio.run(read())["sim"]


def refused_share(stats):
    return stats["by_status"].get("429", 0) / stats["calls"]


def test_a_cap_that_nobody_told_is_found(cluster):
    c = cluster("--cap", "12", "--latency", "0.3", "--sigma", "0.3", pools=POOL, MAX_CONCURRENT_LLM_CALLS="50",
                DICAST_REQUEUE_BUDGET="20")  # fmt: skip
    c.worker()
    c.worker()
    job_id = c.submit(a_job(items=10))
    report = c.report(job_id)
    stats = c.provider.stats()
    assert report["scored"] == 300
    assert refused_share(stats) < 0.10
    assert stats["max_open"] <= 24
    state = pool_state(c)
    assert 6 <= state.limit <= 24
    assert state.statuses[200] == 300
    assert state.rate_limited == stats["by_status"].get("429", 0)
    assert state.open == 0
    lines = [line for line in c.logs() if line["event"] == "limit_changed"]
    assert {"pool", "from", "to", "reason", "ceiling"} <= lines[0].keys()
    c.quiet()


def test_an_operators_requests_a_minute_are_kept(cluster):
    """120 a minute are two a second: what a burst may add is one call."""
    pools = POOL + "rpm = 120\n"
    c = cluster("--latency", "0.05", pools=pools, MAX_CONCURRENT_LLM_CALLS="20")
    c.worker()
    job_id = c.submit(a_job(agents=1, items=2))
    until(lambda: c.done(job_id) >= 4, "some are done")
    first = c.provider.stats()
    until(lambda: c.done(job_id) >= 14, "ten more are done")
    second = c.provider.stats()
    rate_per_s = (second["calls"] - first["calls"]) / (second["uptime_s"] - first["uptime_s"])
    assert 0.2 < rate_per_s < 2.8
    assert c.report(job_id)["scored"] == 20


def test_the_median_latency_is_kept_below_an_operators_target(cluster):
    """A server that refuses nothing: eight calls at full speed, and each takes longer where more are open."""
    pools = POOL + "limit = 40\nceiling = 50\nlatency_target_s = 0.5\n"
    c = cluster("--knee", "8", "--latency", "0.2", pools=pools, MAX_CONCURRENT_LLM_CALLS="50")
    c.worker()
    report = c.report(c.submit(a_job(items=30)))
    with urllib.request.urlopen(f"{c.provider.base_url}/log", timeout=30) as reply:
        took = [call["end"] - call["arrival"] for call in json.load(reply)]
    assert report["scored"] == len(took) == 900
    assert max(took[:60]) > 0.5, "it began with far too many"
    assert 0.25 < statistics.median(took[600:]) < 0.5
    state = pool_state(c)
    assert 8 <= state.limit <= 22
    assert any(change["reason"] == "slower than the latency target" for change in state.changes)


def test_four_projects_share_a_pool_though_one_is_greedy(cluster):
    c = cluster("--cap", "8", "--latency", "0.2", pools=POOL + "limit = 8\nceiling = 8\n",
                MAX_CONCURRENT_LLM_CALLS="50")  # fmt: skip
    c.worker()
    owners = {c.submit(a_job(agents=2, items=20, project="greedy", id=f"greedy-{n}")): "greedy" for n in range(3)}
    for name in ("a", "b", "c"):
        owners[c.submit(a_job(agents=2, items=10, project=name, id=name))] = name

    def got():
        shares = dict.fromkeys(owners.values(), 0)
        for job, owner in owners.items():
            shares[owner] += c.done(job)
        return shares

    until(lambda: min(got()[p] for p in "abc") >= 5, "everybody was served")
    start = got()
    until(lambda: max(got()[p] - start[p] for p in "abc") >= 30, "somebody was served thirty times")
    shares = [now - start[p] for p, now in got().items()]
    assert sum(shares) ** 2 / (4 * sum(n * n for n in shares)) >= 0.95, shares
    for job in owners:
        c.app.ledger.cancel(job)
    for job in owners:
        c.report(job)
