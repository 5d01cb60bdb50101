"""Replicates of which one call answers several: paid for as one prompt, and none lost when a worker is killed."""

import pytest

from tests.e2e.cluster import SOON, a_job, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

POOL = """
default = "sim"
[pools.sim]
provider = "simulated"
base_url = "{url}"
limit = 4
adaptive = false
answers_per_call = 8
price = {{ input = 1, output = 4 }}
"""


def test_eight_replicates_a_call_through_a_kill_and_again_from_the_cache(cluster):
    c = cluster("--latency", "0.3", pools=POOL, **SOON)
    killed = c.worker()
    c.worker()
    job = a_job(agents=1, dimensions=2, items=10, replicates=8, cache="use")
    job_id = c.submit(job)
    until(lambda: c.done(job_id) >= 40, "a quarter is done")
    killed.kill()
    report = c.report(job_id)
    assert (report["scored"], report["failed"]) == (160, 0)
    opinions = c.opinions(job_id)
    assert len({(o["item_id"], o["criterion_id"], o["replicate"]) for o in opinions}) == 160
    before = c.provider.stats()
    assert 20 <= before["calls"] <= 24, "one a question, and again what the dead worker had open"

    again = c.report(c.submit({**job, "replicates": 16}))
    assert (again["scored"], again["cached"]) == (320, 160)
    after = c.provider.stats()
    assert after["calls"] - before["calls"] == again["calls"] == 20, "one for the other eight of each"
    assert after["tokens"]["input"] - before["tokens"]["input"] == again["input_tokens"], "the prompt is paid for once"
