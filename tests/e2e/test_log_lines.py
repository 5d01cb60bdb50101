"""What a worker writes, line by line."""

from __future__ import annotations

import json

import pytest

from tests.e2e.cluster import a_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_a_worker_may_write_json_alone(cluster):
    """From its start to its end on a signal, on both of its outputs; by default Celery's banner stands before it."""
    cluster = cluster()
    worker = cluster.worker(DICAST_LOG_JSON_ONLY="true")
    assert cluster.report(cluster.submit(a_job()))["failed"] == 0
    worker.stop()
    lines = worker.log.read_text().splitlines()
    assert {json.loads(line)["event"] for line in lines} >= {"log", "acquired", "judged", "job_completed"}
    plain = cluster.worker()
    plain.stop()
    assert not plain.log.read_text().lstrip().startswith("{")


def test_each_unit_that_waits_for_a_slot_is_told_of(cluster):
    """At the gate or in the queue; those that get theirs at once are not."""
    cluster = cluster("--latency", "0.2", "--sigma", "0", MAX_CONCURRENT_LLM_CALLS="5")
    cluster.worker()
    assert cluster.report(cluster.submit(a_job(agents=1, dimensions=5, items=5)))["scored"] == 25
    lines = list(cluster.logs())
    units = {
        event: [line["unit"] for line in lines if line.get("event") == event] for event in ("queueing", "acquired")
    }
    assert len(set(units["acquired"])) == 25
    assert len(units["queueing"]) == len(set(units["queueing"])), "each once"
    assert len(set(units["queueing"])) >= 19, "all but those that found a slot"
    alone = cluster.submit(a_job(agents=1, dimensions=1, items=1))
    assert cluster.report(alone)["scored"] == 1
    assert not [line for line in cluster.logs() if line.get("event") == "queueing" and line["job"] == alone]
