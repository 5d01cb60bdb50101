"""An id is used again while its workers live: after a flush, and after the first job's time in the store is over."""

from __future__ import annotations

import pytest

from dicast.app.ledger.records import JobState
from tests.e2e.cluster import a_job, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_after_a_flush_a_job_has_the_results_of_its_own_units_alone(cluster):
    """Pages of the lost job lie on disk, calls of it are open, and its answers come when the other one runs."""
    c = cluster("--latency", "0.2", LLM_CALL_TIMEOUT="2", DICAST_PAGE_UNITS="10")
    c.worker()
    c.submit(a_job(id="verdict", agents=3, dimensions=10, items=10))
    until(lambda: len(list((c.results / "verdict" / "parts").rglob("*.jsonl"))) > 6, "pages lie on disk")
    c.app.store.flushdb()
    c.submit(a_job(id="verdict", agents=1, dimensions=4, items=2))
    report = c.report("verdict")
    assert (report["units"], report["scored"], report["failed"]) == (8, 8, 0)
    opinions = c.opinions("verdict")
    assert {o["judge"] for o in opinions} == {"judge-0"}
    assert len({(o["criterion_id"], o["item_id"]) for o in opinions}) == len(opinions) == 8
    [aside] = c.results.glob("verdict~*")
    assert list(aside.rglob("parts/**/*.jsonl"))
    c.quiet()


def test_past_its_retention_an_id_means_the_next_job(cluster):
    """Not the dimensions that a worker remembers, nor the report that the first one's callers were told."""
    c = cluster("--latency", "0.05")
    c.worker()
    first = a_job(id="weekly", agents=1, dimensions=2)
    c.submit(first)
    assert c.app.AsyncResult("weekly").get(timeout=60)["scored"] == 2
    until(lambda: not c.app.store.smembers("{dicast}:outbox"), "it is announced")
    assert c.app.ledger.status("weekly").state is JobState.COMPLETED
    c.app.store.delete("{dicast}:job:weekly")  # as after seven days

    second = a_job(id="weekly", agents=1, dimensions=2)
    second["dimensions"] = [{"id": f"other-{n}", "instructions": "And now?"} for n in range(3)]
    c.submit(second)
    assert c.app.AsyncResult("weekly").get(timeout=60)["scored"] == 3
    assert {o["criterion_id"] for o in c.opinions("weekly")} == {"other-0", "other-1", "other-2"}
    [aside] = c.results.glob("weekly~*")
    assert (aside / "report.json").exists()
    c.quiet()
