"""The governor on real parts: workers and a provider over HTTP whose limits nobody tells; its own count decides.

These are short: `python -m lab.bench.governor_http` measures the full figures.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import urllib.request

import pytest

from dicast.app.operator.spending import budget_standings
from dicast.workers.admission.pool_state import PoolStates, findings
from dicast.workers.store.connection import connect_async
from tests.e2e.cluster import a_job, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

POOL = """
[pools.sim]
provider = "simulated"
base_url = "{url}/v1"
"""


def pool_states(cluster):
    async def read():
        async with connect_async(cluster.app.store_url) as client:
            return {state.pool: state for state in await PoolStates(client, cluster.app.keys).all()}

    return asyncio.run(read())


def pool_state(cluster):
    return pool_states(cluster)["sim"]


def calls_of(cluster):
    with urllib.request.urlopen(f"{cluster.provider.base_url}/log", timeout=30) as reply:
        return json.load(reply)


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


def test_a_cap_of_a_gateway_that_answers_with_a_page_is_found(cluster):
    """Status 200 and HTML, whatever the reason: neither the status nor the body says that there were too many calls."""
    c = cluster("--cap", "12", "--latency", "1", "--sigma", "0.2", "--errors-as", "page", pools=POOL,
                MAX_CONCURRENT_LLM_CALLS="50", RETRY_INITIAL_DELAY="1", RETRY_MAX_DELAY="5")  # fmt: skip
    c.worker()
    report = c.report(c.submit(a_job(items=10)))
    calls, state = c.provider.stats()["calls"], pool_state(c)
    assert report["scored"] == state.statuses[200] == 300
    assert state.statuses[204] == calls - 300 < 45
    assert 6 <= state.limit <= 18
    c.quiet()


def test_a_server_that_is_no_provider_ends_a_job_soon(cluster):
    """It sends pages to every call: the pool is not full, and no call waits for it."""
    c = cluster("--cap", "0", "--errors-as", "page", pools=POOL, MAX_CONCURRENT_LLM_CALLS="50")
    c.worker()
    report = c.report(c.submit(a_job(items=4)))
    assert report["scored"] == 0
    assert "text/html" in json.dumps(report)


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
    calls = calls_of(c)
    took = [call["end"] - call["arrival"] for call in calls]
    assert report["scored"] == len(took) == 900
    assert max(took[:60]) > 0.5, "it began with far too many"
    assert statistics.median(took[600:]) < 0.5
    last_s = max(call["end"] for call in calls[600:]) - min(call["arrival"] for call in calls[600:])
    assert sum(took[600:]) / last_s > 7, "eight open calls are what full speed needs"
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


def test_a_model_that_is_refused_alone_is_named(cluster):
    """Its pool's limit is kept where this one needs it, and the other model's calls wait."""
    c = cluster("--latency", "0.1", "--model", "small:cap=2", "--model", "large:cap=1000",
                MAX_CONCURRENT_LLM_CALLS="40", DICAST_REQUEUE_BUDGET="20", pools=POOL)  # fmt: skip
    c.worker()
    agents = [{"name": model, "pool": "sim", "model": model} for model in ("small", "large")]
    job_id = c.submit(a_job(items=100) | {"agents": agents})

    def is_named():
        state = pool_states(c).get("sim")
        return state is not None and any("are of small, one of 2 models" in finding for finding in findings(state))

    until(is_named, "the model is named")
    c.app.ledger.cancel(job_id)
    c.report(job_id)


def test_two_models_of_one_account_fill_a_cap_each(cluster):
    """Half of the units are of a model of which 8 calls may be open, and half of one with 60."""
    caps = {"small": 8, "large": 60}
    provider = [option for model, cap in caps.items() for option in ("--model", f"{model}:cap={cap}")]
    price = "{{ input = 1, output = 1 }}"
    pools = POOL + f'limits_by_model = ["small", "large"]\nprice = {{{{ small = {price}, large = {price} }}}}\n'
    pools += "budget = {{ day = 50 }}\n"
    c = cluster("--latency", "6", "--sigma", "0.2", *provider, pools=pools, MAX_CONCURRENT_LLM_CALLS="120",
                DICAST_MAX_CONCURRENT_LLM_CALLS_RANGE="120")  # fmt: skip
    c.worker()
    agents = [{"name": model, "pool": "sim", "model": model} for model in caps]
    job_id = c.submit(a_job(items=60) | {"agents": agents})
    until(lambda: c.provider.stats()["models"]["large"]["max_open"] >= 57, "the larger cap is full")
    filled = c.provider.stats()["uptime_s"]
    until(lambda: c.provider.stats()["uptime_s"] > filled + 18.0, "it stays so for 18 s")
    calls = calls_of(c)
    c.app.ledger.cancel(job_id)
    c.report(job_id)

    def used(model, began, ended):
        """The share of a model's cap that was used."""
        mine = [call for call in calls if call["model"] == model and call["accepted"]]
        mine = [call for call in mine if call["end"] is None or call["status"] == 200]
        spans = (min(ended, call["end"] or ended) - max(began, call["arrival"]) for call in mine)
        return sum(max(0.0, span) for span in spans) / (caps[model] * (ended - began))

    # Any 8 seconds: a busy machine stands still for one or two now and then.
    shares = [{model: used(model, filled + n, filled + n + 8.0) for model in caps} for n in range(11)]
    assert max(min(share.values()) for share in shares) >= 0.9, shares
    assert refused_share(c.provider.stats()) < 0.1
    states = pool_states(c)
    assert set(states) == {"sim", "sim:small", "sim:large"}
    assert states["sim"].statuses == {}
    for model, cap in caps.items():
        state = states[f"sim:{model}"]
        assert abs(state.limit - cap) <= 2 + 0.1 * cap, (model, state.limit)
        assert state.statuses[200] >= sum(call["model"] == model and call["status"] == 200 for call in calls) > 0
    (standing,) = budget_standings(c.app)
    assert (standing.kind, standing.name, standing.spent > 0) == ("pool", "sim", True)
