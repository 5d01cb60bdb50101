"""The same question is not paid for twice: jobs that use the opinions of earlier ones."""

import json

import pytest

from tests import processes
from tests.e2e.cluster import ROOT, a_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def scores(c, job_id):
    return {(o["judge"], o["criterion_id"], o["item_id"]): o["score"] for o in c.opinions(job_id)}


@pytest.mark.parametrize("batching", [False, True])
def test_only_what_changed_is_paid_for(cluster, batching):
    c = cluster()
    c.worker()
    job = a_job(agents=2, dimensions=4, items=30, cache="use", batching=batching)
    first = c.report(before := c.submit(job))
    calls = c.provider.stats()["calls"]
    assert calls == first["calls"] == (60 if batching else 240) and first["cached"] == 0

    again = c.report(after := c.submit(job))
    assert c.provider.stats()["calls"] == calls, "the same job again makes no call"
    assert (again["scored"], again["cached"], again["calls"], again["input_tokens"]) == (240, 240, 0, 0)
    assert scores(c, after) == scores(c, before)
    assert {o["cached"] for o in c.opinions(after)} >= {again["cached_since"]}

    changed = {**job, "dimensions": [*job["dimensions"][:3], {"id": "dim-3", "instructions": "Another question?"}]}
    report = c.report(c.submit(changed))
    made = 60 if batching else 240 // 4  # a batch asks about all dimensions at once
    assert c.provider.stats()["calls"] == calls + made
    assert (report["scored"], report["cached"]) == (240, 0 if batching else 180)

    calls += made
    assert c.report(c.submit({**job, "cache": "refresh"}))["cached"] == 0
    assert c.report(c.submit({**job, "cache": "off"}))["cached"] == 0
    assert c.provider.stats()["calls"] == calls + 2 * (60 if batching else 240)


def test_what_failed_is_asked_again_and_an_export_is_replayed_without_a_call(cluster, tmp_path):
    c = cluster("--fault", "html=0.4", RETRY_MAX_ATTEMPTS="1")
    c.worker()

    def command(*arguments):
        environ = {**c.environ, "PYTHONPATH": str(ROOT)}
        return processes.run(["dicast", *arguments], environ, tmp_path, timeout=120)

    job = a_job(agents=1, dimensions=2, items=20, cache="use", fail_fast=0)
    first = c.report(c.submit(job))
    assert first["failed"] > 0
    c.provider.control(faults={})
    second = c.report(c.submit(job))
    assert (second["scored"], second["cached"], second["calls"]) == (40, first["scored"], first["failed"])

    calls, export = c.provider.stats()["calls"], tmp_path / "kept.jsonl"
    assert command("cache", "export", str(export)).returncode == 0
    assert len(export.read_text().splitlines()) == 40
    assert command("cache", "prune", "--older-than", "0s").returncode == 0
    (tmp_path / "job.json").write_text(
        json.dumps({**job, "items": [*job["items"], {"id": "new", "text": "A new one"}]})
    )
    ran = command("run", "job.json", "--json", "--cassette", str(export))
    assert ran.returncode == 1, ran.stderr
    report = json.loads(ran.stdout)
    assert (report["scored"], report["failed"], report["calls"]) == (40, 2, 0)
    assert [group["kind"] for group in report["errors"]] == ["not_asked"]
    assert "the cache has no opinion on it" in report["errors"][0]["examples"][0]["message"]
    assert c.provider.stats()["calls"] == calls
