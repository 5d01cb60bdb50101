"""A job that can only fail ends soon, with one clear error and hardly a call."""

import re

import psutil
import pytest

from dicast.app.operator import waiting
from dicast.app.operator.waiting import unserved
from tests.e2e.cluster import a_job, until
from tests.patience import scheduling_s

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
UNITS = 1000
ENDS_WITHIN_S = 2.0

POOLS = """
default = "sim"
[pools.sim]
provider = "simulated"
base_url = "{url}/v1"
api_key_env = "SIM_KEY"
[pools.warm]
provider = "simulated"
base_url = "{url}/v1"
api_key_env = "WARM_KEY"
"""


def warmed(cluster, *options, workers=1, **settings):
    """An installation that has worked before: what a worker loads with its first unit, and the store's first second,
    are not what is measured."""
    c = cluster("--latency", "0.02", *options, pools=POOLS, WARM_KEY="right", **settings)
    for _ in range(workers):
        c.worker()
    c.report(c.submit(a_job(agents=1, pool="warm")))
    c.provider.control(reset=True)
    return c


def ended(cluster, job):
    """The job's id and report, and how long it took by the store's clock: the least of ten runs, without the time in
    which its processes were ready to run and others had the cores."""
    processes = [cluster.provider.process.pid]
    for worker in cluster.workers:
        processes += [worker.process.pid, *(child.pid for child in psutil.Process(worker.process.pid).children(True))]
    took_s = float("inf")
    for _ in range(10):
        cluster.provider.control(reset=True)
        waited_s = scheduling_s(processes)
        job_id = cluster.submit(job)
        report = cluster.report(job_id)
        waited_s = scheduling_s(processes) - waited_s
        status = cluster.app.ledger.status(job_id)
        took_s = min(took_s, (status.finished_ms - status.started_ms) / 1000 - waited_s)
        if took_s < ENDS_WITHIN_S:
            break
    return job_id, report, took_s


@pytest.mark.parametrize("workers", [1, 2])
def test_a_wrong_key_ends_a_thousand_units_at_once(cluster, workers):
    c = warmed(cluster, "--api-key", "right", workers=workers, SIM_KEY="wrong")
    job_id, report, took_s = ended(c, a_job(agents=1, dimensions=10, items=UNITS // 10))
    calls = c.provider.stats()["calls"]
    assert 20 <= calls == report["calls"] <= 20 + 5 * workers, "those that were open when it stopped"
    assert took_s < ENDS_WITHIN_S or workers > 1, "two share the machine's cores with each other and the provider"
    assert (report["failed"], report["status"]) == (UNITS, "completed")
    (stop,) = report["stopped"]
    assert (stop["pool"], stop["after"], stop["status_code"]) == ("sim", 20, 401)
    kinds = {group["kind"]: group for group in report["errors"]}
    assert set(kinds) == {"rejected", "not_asked"} and kinds["not_asked"]["count"] == UNITS - calls
    (reason,) = kinds["not_asked"]["reasons"]
    assert reason["message"].startswith("not asked: the first 20 calls of simulated-judge in pool 'sim' ended in: ")
    assert "401" in reason["message"] and "invalid_api_key" in reason["message"]
    told = [line for line in c.logs() if line["event"] == "stopped_asking" and line["job"] == job_id]
    assert [line["level"] for line in told] == ["ERROR"]
    assert len(c.opinions(job_id)) == len(c.errors(job_id)) == UNITS
    c.quiet()


def test_units_wait_for_a_worker_that_has_the_key(cluster):
    """None is called or fails for want of it; what is missing is said at once, and in the worker's log."""
    c = warmed(cluster, "--api-key", "right")
    job_id = c.submit(a_job(agents=1, dimensions=10, items=UNITS // 10))
    why = until(lambda: waiting.reason(c.app, c.app.ledger.status(job_id)), "it is said what it waits for")
    assert re.fullmatch(r"the units of pool sim wait, for no living node takes them: w0@\S+ has no SIM_KEY", why)
    assert c.app.cluster.status().unsatisfied == [why]
    assert why in [finding.message for finding in unserved(c.app)]
    assert c.app.cluster.node("w0").missing_keys == ["sim"]
    assert [line["pool"] for line in c.logs() if line["event"] == "pool_unserved"] == ["sim"]
    (reply,) = c.app.control.add_consumer("provider.sim", reply=True, timeout=20, limit=1)
    assert "left to other workers: needs SIM_KEY, which is not set" in str(reply)
    assert c.provider.stats()["calls"] == 0
    c.worker(SIM_KEY="right", MAX_CONCURRENT_LLM_CALLS="50")
    report = c.report(job_id)
    assert (report["scored"], report["failed"], report["calls"]) == (UNITS, 0, UNITS)
    assert {line["node"][:2] for line in c.logs() if line["event"] == "acquired" and line["job"] == job_id} == {"w1"}
    assert waiting.reason(c.app, c.app.ledger.status(job_id)) is None


def test_an_account_without_money_is_asked_no_more(cluster):
    c = warmed(cluster, SIM_KEY="any")
    c.provider.control(exhausted=True)
    _, report, took_s = ended(c, a_job(agents=1, dimensions=10, items=UNITS // 10))
    assert 1 <= c.provider.stats()["calls"] == report["calls"] <= 10
    assert took_s < ENDS_WITHIN_S
    assert {group["kind"] for group in report["errors"]} == {"quota_exhausted"}


def test_a_job_waits_for_money_where_it_says_so(cluster):
    c = cluster("--latency", "0.02", "--exhausted", DICAST_QUOTA_RECHECK="1")
    c.worker()
    job_id = c.submit(a_job(agents=1, dimensions=10, items=2, on_exhausted="wait"))
    until(lambda: c.provider.stats()["calls"] >= 3, "it is looked again")
    c.provider.control(exhausted=False)
    report = c.report(job_id)
    assert (report["scored"], report["failed"]) == (20, 0)
    assert c.provider.stats()["calls"] == report["calls"]


def test_one_agent_with_a_wrong_model_does_not_stop_the_other(cluster):
    c = cluster("--latency", "0.02", "--model", "wrong:exhausted=true")
    c.worker()
    job = a_job(agents=2, dimensions=10, items=10)
    job["agents"][1]["model"] = "wrong"
    _, report, _ = ended(c, job)
    assert (report["scored"], report["failed"]) == (100, 100)
    assert [stop["model"] for stop in report["stopped"]] == ["wrong"]
