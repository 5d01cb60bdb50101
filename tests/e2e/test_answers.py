"""Answers that are another call's: each valid, fitting the schema, through the structured channel."""

import pytest

from lab.chaos.own_answers import foreign
from tests.e2e.cluster import a_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.mark.parametrize("pool", ["sim", "claude"])
def test_no_foreign_answer_is_scored(cluster, pool):
    c = cluster("--latency", "0.05", "--fault", "swapped=0.5", RETRY_MAX_ATTEMPTS="30")
    c.worker()
    job = a_job(agents=2, dimensions=4, items=3, pool=pool)
    report = c.report(job_id := c.submit(job))
    stats = c.provider.stats()
    assert stats["faults"]["swapped"] > 0
    assert (report["scored"], report["failed"]) == (24, 0)
    assert foreign(job, c.opinions(job_id)) == []
    assert stats["calls"] == report["calls"] == 24 + stats["faults"]["swapped"]


def test_no_foreign_answer_is_scored_where_the_schema_holds_the_nonce(cluster):
    pools = """
    [pools.sim]
    provider = "simulated"
    base_url = "{url}/v1"
    nonce_in_schema = true
    """
    c = cluster("--latency", "0.05", "--fault", "swapped=0.5", pools=pools, RETRY_MAX_ATTEMPTS="30")
    c.worker()
    job = a_job(agents=2, dimensions=4)
    report = c.report(job_id := c.submit(job))
    assert report["scored"] == 8 and c.provider.stats()["faults"]["swapped"] > 0
    assert foreign(job, c.opinions(job_id)) == []


def test_no_foreign_batch_is_scored(cluster):
    c = cluster("--latency", "0.05", "--fault", "swapped=0.5", BATCHING_ENABLED="true", RETRY_MAX_ATTEMPTS="30")
    c.worker()
    job = a_job(agents=2, dimensions=4, items=3)
    report = c.report(job_id := c.submit(job))
    stats = c.provider.stats()
    assert report["scored"] == 24 and stats["faults"]["swapped"] > 0
    c.provider.control(faults={})
    c.report(again := c.submit(job))
    batched = {(o["judge"], o["criterion_id"], o["item_id"]): o["score"] for o in c.opinions(again)}
    alone = [o for o in c.opinions(job_id) if o["score"] != batched[o["judge"], o["criterion_id"], o["item_id"]]]
    assert foreign(job, alone) == [], "what is not the batch's answer is that to the question asked alone"
