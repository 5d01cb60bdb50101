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
