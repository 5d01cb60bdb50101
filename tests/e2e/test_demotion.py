"""The store's primary becomes a replica while all connections to it live: real servers, real workers."""

from __future__ import annotations

import time

import pytest

from tests.e2e.cluster import a_job, until
from tests.e2e.servers import Pair

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

GOES_ON_S = 5.0
EIGHT_S = 0.6  # four at a time, 0.3 s each


@pytest.fixture
def pair(tmp_path):
    pair = Pair(tmp_path / "pair")
    yield pair
    pair.stop()


@pytest.mark.parametrize("way", ["fail_over", "demote"])
def test_work_goes_on_at_the_successor(pair, cluster, way):
    c = cluster("--latency", "0.3", REDIS_URL=pair.url, MAX_CONCURRENT_LLM_CALLS="4")
    worker = c.worker()
    job_id = c.submit(a_job(agents=4, dimensions=30))
    until(lambda: c.done(job_id) >= 20, "some are done")
    began = time.monotonic()
    until(lambda: c.done(job_id) >= 28, "eight more are done")
    busy = max(1.0, (time.monotonic() - began) / EIGHT_S)  # a machine that does other work is given more time
    getattr(pair, way)()
    done = c.done(job_id)
    until(lambda: c.done(job_id) > done + 8, "work goes on", GOES_ON_S * busy)
    report = c.report(job_id)
    assert (report["scored"], report["failed"]) == (120, 0)
    assert c.provider.stats()["max_open"] <= 4
    c.quiet()
    assert worker.process.poll() is None
    text = worker.log.read_text()
    assert text.count("READONLY") + text.count("read only") < 50, "nobody stays where it is refused"
