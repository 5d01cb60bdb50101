"""How many calls a worker has open: `-c`, `pool_grow`, `pool_shrink`, `--autoscale`; the provider counts them."""

from __future__ import annotations

import pytest

from dicast.app.operator.store_checks import Severity
from dicast.app.operator.waiting import workers
from tests.e2e.cluster import a_job, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

LIMIT = {"MAX_CONCURRENT_LLM_CALLS": "12"}


@pytest.mark.parametrize("calls", [1, 2, 4])
def test_c_is_the_number_of_open_calls(cluster, calls):
    c = cluster("--latency", "0.3", "--sigma", "0", **LIMIT)
    c.worker("-c", str(calls))
    report = c.report(c.submit(a_job(agents=1, dimensions=4 * calls)))
    assert report["scored"] == 4 * calls
    assert c.provider.stats()["max_open"] == calls
    assert [node.slots for node in c.app.registry.alive()] == [calls]


def test_a_pool_grows_and_shrinks_while_it_works(cluster):
    c = cluster("--latency", "1", "--sigma", "0", **LIMIT)
    c.worker("-c", "2")
    job_id = c.submit(a_job(agents=1, items=4))
    until(lambda: c.provider.stats()["open"] == 2, "two calls are open")
    assert c.app.control.pool_grow(3, reply=True, timeout=20, limit=1)[0].popitem()[1] == {"ok": "pool will grow"}
    until(lambda: c.provider.stats()["open"] == 5, "five calls are open")
    assert c.app.control.pool_shrink(4, reply=True, timeout=20, limit=1)[0].popitem()[1] == {"ok": "pool will shrink"}
    until(lambda: c.provider.stats()["open"] == 1, "one call is open")
    c.provider.control(reset=True, latency=0.1)
    assert c.report(job_id)["scored"] == 40
    assert c.provider.stats()["max_open"] == 1


def test_a_pool_scales_between_two_numbers(cluster):
    c = cluster("--latency", "1", "--sigma", "0", **LIMIT)
    c.worker("--autoscale=6,1")
    job_id = c.submit(a_job(agents=1, items=8))
    until(lambda: c.provider.stats()["open"] == 6, "as many as may be are open")
    told = c.app.control.pool_grow(3, reply=True, timeout=20, limit=1)[0].popitem()[1]
    assert told == {"error": "pool_grow is not supported with autoscale. Adjust autoscale range instead."}
    assert c.app.control.autoscale(3, 1, reply=True, timeout=20, limit=1)[0].popitem()[1] == {
        "ok": "autoscale now max=3 min=1"
    }
    until(lambda: c.provider.stats()["open"] <= 3, "fewer are open")
    c.provider.control(reset=True, latency=0.1)
    assert c.report(job_id)["scored"] == 80
    assert c.provider.stats()["max_open"] == 3


def test_the_doctor_tells_of_a_worker_that_judges_nothing(cluster):
    c = cluster()
    c.worker("-X", "provider.sim,provider.claude")
    until(lambda: [n.judges for n in c.app.registry.alive()] == [False], "it is heard")
    found = [f for f in workers(c.app) if f.severity is Severity.WARNING and "judges nothing" in f.message]
    assert len(found) == 1
