"""One judge, several deployments: real workers, and providers that fail and recover."""

from __future__ import annotations

import socket
import urllib.request
from collections import Counter

import pytest

from tests.e2e.cluster import Simulated, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

POOLS = """
default = "left"
[pools.left]
provider = "simulated"
base_url = "{url}/v1"
model = "left-model"
limit = 4
ceiling = 4
[pools.right]
provider = "simulated"
base_url = "{other}"
dialect = "anthropic"
model = "right-model"
limit = 4
ceiling = 4
"""
DEPLOYMENTS = [{"pool": "left"}, {"pool": "right"}]


def job(units, **more):
    return {
        "items": [{"id": f"item-{n}", "text": f"A text to judge, number {n}."} for n in range(units // 2)],
        "agents": [{"name": "judge", "deployments": DEPLOYMENTS}],
        "dimensions": [{"id": f"dim-{n}", "instructions": "Is it good?"} for n in range(2)],
        **more,
    }


@pytest.fixture
def other():
    provider = Simulated("--latency", "0.1")
    yield provider
    provider.stop()


def started(cluster, other, **settings):
    pools = POOLS.replace("{other}", other.base_url)
    c = cluster("--latency", "0.1", pools=pools, MAX_CONCURRENT_LLM_CALLS="8", **settings)
    c.worker()
    return c


def models(cluster, job_id):
    return Counter(opinion["model"] for opinion in cluster.opinions(job_id))


def whole(cluster, job_id, report, units):
    assert (report["scored"], report["failed"]) == (units, 0)
    opinions = cluster.opinions(job_id)
    assert len({(o["item_id"], o["criterion_id"]) for o in opinions}) == len(opinions) == units
    cluster.quiet()
    assert cluster.app.store.hgetall(cluster.app.keys.assigned) == {}


def test_equal_deployments_share_the_units(cluster, other):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    c = started(cluster, other, BATCHING_ENABLED="true", DICAST_METRICS_PORT=str(port), DICAST_NODE_WIDTH="rules")
    job_id = c.submit(job(120))
    whole(c, job_id, c.report(job_id), 120)
    shares = models(c, job_id)
    assert shares.keys() == {"left-model", "right-model"}
    assert min(shares.values()) >= 30
    assert (c.provider.stats()["calls"], other.stats()["calls"]) == (
        shares["left-model"] // 2, shares["right-model"] // 2,
    )  # fmt: skip
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        series = dict(line.rsplit(" ", 1) for line in reply.read().decode().splitlines() if not line.startswith("#"))
    assert series['dicast_pool_answers_total{pool="left",status="200"}'] == f"{shares['left-model'] / 2}"
    assert float(series['dicast_assignments_total{model="right-model",pool="right"}']) >= shares["right-model"] / 2
    assert float(series["dicast_assignment_score_count"]) >= 60
    assert series['dicast_pool_load{pool="right"}'] == "0.0"
    assert float(series['dicast_pool_latency_seconds{model="left-model",pool="left"}']) > 0
    assert (series['dicast_pool_nodes{pool="left"}'], series["dicast_living_workers"]) == ("1.0", "1.0")
    assert float(series["dicast_wanted_workers"]) <= 1
    places = {(opinion["pool"], opinion["model"]) for opinion in c.opinions(job_id)}
    assert places == {("left", "left-model"), ("right", "right-model")}
    (width,) = [value for name, value in series.items() if name.startswith("dicast_parallelism_level{")]
    assert width == "8.0"
    (agent,) = c.app.ledger.status(job_id).report["agents"]
    assert (agent["pool"], agent["model"]) == ("left, right", "left-model, right-model")


def test_a_deployment_that_fails_loses_its_units_and_gets_them_back(cluster, other):
    """Nothing is lost and no attempt runs out though half of the capacity is down; then it takes part again."""
    c = started(cluster, other, RETRY_MAX_ATTEMPTS="6")
    other.control(fail_5xx=1.0)
    down = c.submit(job(160))
    whole(c, down, c.report(down), 160)
    assert models(c, down) == {"left-model": 160}
    assert other.stats()["calls"] < 60
    other.control(fail_5xx=0.0)
    up = c.submit(job(2000))
    answered = other.stats()["by_status"].get("200", 0)
    until(lambda: other.stats()["by_status"].get("200", 0) >= answered + 60, "the recovered one takes part")
    c.app.ledger.cancel(up)
    c.report(up)
    c.quiet()
    assert c.app.store.hgetall(c.app.keys.assigned) == {}
    assert models(c, up)["right-model"] >= 60
