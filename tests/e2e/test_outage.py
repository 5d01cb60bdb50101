"""A provider that is down, with real workers: nothing hangs, nothing is lost, and people are told."""

from __future__ import annotations

import json

import pytest

from tests import processes
from tests.e2e.cluster import ROOT, a_job, until
from tests.e2e.servers import free_ports
from tests.patience import Stopwatch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

NOBODY = """
default = "sim"
[pools.sim]
provider = "simulated"
base_url = "http://127.0.0.1:{port}/v1"
"""
FAILING = """
default = "sim"
[pools.sim]
provider = "simulated"
base_url = "{url}/v1"
"""
UNHEARD = """
[pools.dead]
provider = "simulated"
base_url = "http://127.0.0.1:{port}/v1"
"""
BOTH = """
default = "dead"
[pools.dead]
provider = "simulated"
base_url = "http://127.0.0.1:{port}/v1"
model = "dead-model"
[pools.well]
provider = "simulated"
base_url = "{{url}}/v1"
model = "well-model"
"""


def units(count, **more):
    return a_job(agents=1, dimensions=1, items=count, **more)


def ended_after(cluster, job_id, watch=None):
    """The job's report, how long it took by the store's clock, and how long of that the machine was not too busy, by
    a watch that began with the job."""
    watch = watch or Stopwatch()
    report = cluster.report(job_id, 120)
    status = cluster.app.ledger.status(job_id)
    took_s = (status.finished_ms - status.started_ms) / 1000
    return report, took_s, min(took_s, watch.s)


def told(cluster, *arguments):
    """What `dicast` says to an operator."""
    found = processes.run(["dicast.app.cli.main", *arguments], cluster.environ, ROOT, timeout=60)
    return " ".join((found.stdout + found.stderr).split())


def test_thirty_units_end_soon_where_the_job_asks_for_that(cluster, record_property):
    """With the product's own waits: three attempts, 1 s and 2 s between them, breaks of 5, 10 and 15 s. At one pool
    every call fails, and at the other nobody listens."""
    waits = {"RETRY_INITIAL_DELAY": "1", "RETRY_MAX_DELAY": "60"}
    c = cluster("--fail-5xx", "1.0", pools=FAILING + UNHEARD.format(port=free_ports(1)[0]), **waits)
    c.worker()
    c.worker()
    watch = Stopwatch()
    jobs = {pool: c.submit(units(30, pool=pool, max_pool_down="30s")) for pool in ("sim", "dead")}
    until(lambda: told(c, "doctor").count("it has been down for") == 2, "the doctor tells", 30)
    for pool, job_id in jobs.items():
        shown = told(c, "jobs", "show", job_id)
        assert f"waits pool {pool} has been down for" in shown and "(last error: " in shown
        assert "it has been down for" in told(c, "governor", "show", "--pool", pool)
    for pool, job_id in jobs.items():
        report, took_s, quiet_s = ended_after(c, job_id, watch)
        record_property("took", f"{pool}: 30 units of three attempts, {took_s:.1f} s, {report['calls']} calls")
        assert quiet_s < 100, "by default it would wait for hours"
        assert (report["scored"], report["failed"], report["status"]) == (0, 30, "completed")
        kinds = {group["kind"]: group["count"] for group in report["errors"]}
        assert set(kinds) <= {"pool_down", "provider"} and kinds["pool_down"] >= 25
        (stop,) = report["stopped"]
        assert stop["message"].startswith(f"pool '{pool}' has been down for 3") and "last error" in stop["message"]
    c.quiet()


def test_a_job_gives_up_within_seconds_and_a_killed_worker_changes_nothing(cluster):
    c = cluster(pools=NOBODY.format(port=free_ports(1)[0]))
    first = c.worker()
    c.worker()
    job_id = c.submit(units(300, max_pool_down="4s"))
    until(lambda: c.app.ledger.status(job_id).counters["calls"] >= 5, "it was tried")
    first.kill()
    report, took_s, quiet_s = ended_after(c, job_id)
    assert report["failed"] == 300 and took_s >= 4 and quiet_s < 60
    assert {group["kind"] for group in report["errors"]} <= {"pool_down", "provider", "lost"}
    assert len(c.errors(job_id)) == 300
    c.quiet()


def test_an_outage_that_is_longer_than_all_attempts_last_is_survived(cluster):
    """By default, and with one attempt a unit: what the probes find out costs none of them their only one."""
    c = cluster("--latency", "0.02", RETRY_MAX_ATTEMPTS="1")
    c.worker()
    assert "break_s 0.1" in told(c, "governor", "set", "--pool", "sim", "--break", "0.1")
    c.provider.control(fail_5xx=1.0)
    job_id = c.submit(units(30))
    until(lambda: parameters(c)["breaker"] != "closed", "the breaker opens")
    before = c.provider.stats()["calls"]
    until(lambda: c.provider.stats()["calls"] >= before + 5, "some probes")
    c.provider.control(fail_5xx=0.0)
    report = c.report(job_id, 120)
    probes = report["retries"] + report["requeues"]
    assert probes >= 3, "one of these calls may have been open when it went down"
    assert report["failed"] == report["calls"] - report["scored"] - probes <= before + 2
    assert report["calls"] == c.provider.stats()["calls"]
    c.quiet()


def parameters(cluster):
    return json.loads(cluster.app.store.hget(cluster.app.keys.governor("sim"), "parameters"))


def test_units_go_to_the_deployment_that_is_up_with_the_usual_attempts(cluster):
    c = cluster("--latency", "0.02", pools=BOTH.format(port=free_ports(1)[0]))
    c.worker()
    job = units(100)
    job["agents"][0] = {"name": "judge", "deployments": [{"pool": "dead"}, {"pool": "well"}]}
    report, _, quiet_s = ended_after(c, c.submit(job))
    assert (report["scored"], report["failed"]) == (100, 0)
    assert quiet_s < 90
    c.quiet()


def test_a_job_ends_at_its_time_with_what_it_has(cluster):
    c = cluster("--latency", "1.0")
    c.worker()
    job_id = c.submit(units(400, finish_by="4s"))
    report, took_s, quiet_s = ended_after(c, job_id)
    assert took_s >= 4 and quiet_s < 60
    assert 5 <= report["scored"] <= 25 and report["scored"] + report["failed"] == 400
    assert {group["kind"] for group in report["errors"]} == {"deadline"}
    assert report["calls"] <= c.provider.stats()["calls"] + 5
    c.quiet()


def test_a_unit_that_is_not_answered_in_time_is_cut(cluster):
    c = cluster("--latency", "0.02", "--model", "slow:latency=60")
    c.worker()
    job = a_job(agents=2, dimensions=1, items=5, unit_deadline=8)
    job["agents"][1]["model"] = "slow"
    report, _, quiet_s = ended_after(c, c.submit(job))
    assert (report["scored"], report["failed"]) == (5, 5) and quiet_s < 50
    (group,) = report["errors"]
    assert group["kind"] == "deadline" and report["calls_without_answer"] >= 1
    assert "down" not in told(c, "governor", "show"), "what we cut is no evidence against the provider"
    c.quiet()
