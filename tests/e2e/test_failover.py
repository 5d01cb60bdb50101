"""A store behind Sentinel whose master dies: real servers, real workers, a provider over HTTP."""

from __future__ import annotations

import pytest
import redis

from dicast.app.operator.doctor import examine
from tests.e2e.cluster import SOON, a_job, until
from tests.e2e.servers import Watched, needs_sentinel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180), needs_sentinel]


@pytest.fixture
def watched(tmp_path):
    """Starts them; all are stopped in the end."""
    running = []

    def start(**options):
        running.append(Watched(tmp_path / "redis", **options))
        return running[-1]

    yield start
    for servers in running:
        servers.stop()


def ended(cluster, job_id):
    """Its report, in spite of a client that may find no master."""

    def look():
        try:
            return cluster._ended(job_id)
        except redis.ConnectionError:
            return None

    return until(look, f"job {job_id} ends").report


def whole(cluster, job_id, units):
    report = ended(cluster, job_id)
    assert (report["scored"], report["failed"]) == (units, 0)
    opinions = cluster.opinions(job_id)
    assert len({(o["judge"], o["criterion_id"]) for o in opinions}) == len(opinions) == units
    cluster.quiet()


def test_a_master_that_dies_during_calls_fails_no_unit_and_costs_no_call(watched, cluster):
    """Three sentinels, of which one is gone; passwords; the epoch goes on, for the copy had everything."""
    store = watched(password="secret-of-the-store")
    c = cluster("--latency", "0.5", REDIS_URL=store.url)
    (unwise,) = [finding for finding in examine(c.environ) if finding.area == "fail-over"]
    assert "goes on granting calls beside its successor" in unwise.message
    worker = c.worker()
    job_id = c.submit(a_job(agents=3, dimensions=12))
    until(lambda: c.done(job_id) >= 8 and c.provider.stats()["open"], "calls are open")
    epoch = c.app.store.hgetall(c.app.keys.epoch)
    store.kill(store.sentinels[0])
    store.kill(store.master)
    whole(c, job_id, 36)
    after = c.app.store.hgetall(c.app.keys.epoch)
    assert (after["number"], after["server"] != epoch["server"]) == (epoch["number"], True)
    assert (c.provider.stats()["calls"], c.provider.stats()["max_open"]) == (36, 5)
    assert worker.process.poll() is None
    assert "secret-of-the-store" not in worker.log.read_text()


def test_a_copy_that_lacks_the_last_writes_begins_a_new_epoch_and_loses_no_answer(watched, cluster):
    """What the master took and never passed on is told again; the limit holds, over the calls that the copy forgot."""
    store = watched(sentinels=1)
    c = cluster("--latency", "0.4", REDIS_URL=store.url, LLM_CALL_TIMEOUT="2", **SOON)
    c.worker()
    job_id = c.submit(a_job(agents=3, dimensions=12))
    until(lambda: c.done(job_id) >= 8, "some are done")
    number = int(c.app.store.hget(c.app.keys.epoch, "number"))
    store.cut()
    done = c.done(job_id)
    until(lambda: c.done(job_id) >= done + 6 and c.provider.stats()["open"], "some more are done")
    store.kill(store.master)
    whole(c, job_id, 36)
    assert int(c.app.store.hget(c.app.keys.epoch, "number")) > number
    stats = c.provider.stats()
    assert stats["max_open"] <= 5
    assert stats["calls"] <= 36 + 5, "no more than were open"
    recalled = [line["results"] for line in c.logs() if line["event"] == "recalled"]
    assert sum(recalled) >= 6
