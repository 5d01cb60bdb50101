"""Messages, pools and files that are not what a worker expects: they concern nobody but themselves."""

import json

import pytest

from dicast.app.ledger.records import JobState
from lab.chaos import odd_messages
from tests.e2e.cluster import a_job, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

POOLS = """
default = "sim"
[pools.sim]
provider = "simulated"
base_url = "{url}/v1"
dialect = "openai"
"""
NEW = """
[pools.new]
provider = "simulated"
base_url = "{url}/v1"
dialect = "openai"
"""


def test_odd_messages_end_no_loop_stay_nowhere_and_stop_nobody(tmp_path):
    """3,000 of those of which `python -m lab.chaos.odd_messages --count 100000` sends as many as one likes."""
    place = odd_messages.Testbed(tmp_path, MAX_CONCURRENT_LLM_CALLS="10")
    try:
        place.start()
        assert odd_messages.bombard(place, 3000, seed=3) == []
        assert sum(place.set_aside().values()) > 1000
    finally:
        place.stop()


@pytest.fixture
def newer(cluster, tmp_path):
    """A client that knows a pool of which its workers know nothing; and the settings of such workers."""
    c = cluster("--latency", "0.05", pools=POOLS + NEW)
    old = tmp_path / "old.toml"
    old.write_text(POOLS.format(url=c.provider.base_url))
    return c, {"DICAST_POOLS_FILE": str(old)}


def mixed(**more):
    """A job of which one judge is of the new pool."""
    job = a_job(agents=2, dimensions=5, **more)
    job["agents"][1]["pool"] = "new"
    return job


def test_a_job_of_a_pool_that_a_worker_does_not_know_waits_for_one_that_does(newer):
    c, old = newer
    worker = c.worker(**old)
    job_id = c.submit(mixed())
    waiter = c.app.AsyncResult(job_id)
    status = until(lambda: (s := c.app.ledger.status(job_id)).waits_for and s, "it is told that it waits")
    assert (status.waits_for, status.state) == (
        "no worker knows the pool new: its units wait for one that does", JobState.RUNNING,
    )  # fmt: skip
    until(lambda: c.done(job_id) == 5, "the other judge's units are judged")
    assert not waiter.ready()
    assert [line["job"] for line in c.logs() if line["event"] == "pool_unknown"] == [job_id]  # told once
    c.worker()
    assert c.report(job_id)["scored"] == 10
    assert waiter.get(timeout=30)["scored"] == 10
    assert worker.process.poll() is None


def test_a_job_of_a_pool_that_has_left_the_configuration_ends_and_names_it(newer):
    """Some of its units were published before; meanwhile others' lost messages are sent again."""
    c, old = newer
    job_id = c.submit(mixed(items=2))
    clocks = {"CHAOS_CLOCKS": "0.1", "CHAOS_TICKS": "1"}
    first = c.worker("-Q", "dicast.control", **clocks)
    until(lambda: c.app.store.llen("provider.new") and c.app.store.llen("provider.sim"), "all is published")
    until(lambda: c.app.store.zscore("{dicast}:known_pools", "new"), "the pool is announced")
    first.stop()
    c.app.store.delete("provider.sim")
    c.app.store.zincrby("{dicast}:known_pools", -c.app.intervals.pool_gone_ms, "new")  # so long ago
    c.worker(**clocks, **old)
    report = c.report(job_id)
    assert (report["status"], report["scored"], report["failed"]) == ("completed", 10, 10)
    assert {(e["judge"], e["kind"], e["message"]) for e in c.errors(job_id)} == {
        ("judge-1", "rejected", "the pool new is in no worker's configuration")
    }
    assert c.provider.stats()["calls"] == report["calls"] == 10
    c.quiet()


def test_a_job_whose_file_is_gone_is_cancelled_with_the_reason_and_others_go_on(cluster, tmp_path):
    c = cluster("--latency", "0.05")
    data = tmp_path / "items.jsonl"
    data.write_text("".join(json.dumps({"id": str(n), "text": "A text."}) + "\n" for n in range(5)))
    gone = c.submit({**a_job(agents=1, dimensions=2), "items": {"path": str(data)}})
    data.unlink()
    c.worker(CHAOS_CLOCKS="0.05", CHAOS_TICKS="1")
    until(lambda: "cannot be read" in str(c.app.ledger.status(gone).waits_for), "it is told what is missing")
    other = c.submit(a_job(agents=1, dimensions=5))
    assert c.report(other)["scored"] == 5
    report = c.report(gone)
    assert report["status"] == "cancelled"
    assert "items.jsonl: cannot be read: No such file or directory" in report["reason"]
    assert [line["job"] for line in c.logs() if line["event"] == "job_given_up"] == [gone]
