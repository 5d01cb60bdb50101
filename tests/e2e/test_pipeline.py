"""The pipeline on real parts: worker processes, a real store, a provider over HTTP that counts what it sees."""

import json
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from tests.e2e.cluster import ROOT, SOON, a_job, until
from tests.patience import Stopwatch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def replayed(cluster, limit):
    """The tool's own verdict over all logs."""
    command = [sys.executable, "-m", "lab.replay", "--limit", str(limit), *(str(w.log) for w in cluster.workers)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def check_whole(cluster, job_id, report, units):
    """Every unit has one opinion; those without a score have one error; nothing is left open."""
    opinions = cluster.opinions(job_id)
    places = [(o["judge"], o["criterion_id"], o["item_id"], o["replicate"]) for o in opinions]
    assert len(places) == len(set(places)) == units
    failed = [o for o in opinions if o["score"] is None]
    assert len(cluster.errors(job_id)) == len(failed) == report["failed"]
    assert report["scored"] + report["failed"] == units
    cluster.quiet()


def test_thirty_units_five_open(cluster):
    c = cluster("--cap", "5", "--latency", "0.3")
    c.worker()
    c.worker()
    job_id = c.submit(a_job())
    report = c.report(job_id)
    stats = c.provider.stats()
    check_whole(c, job_id, report, 30)
    assert (report["scored"], stats["calls"]) == (30, 30)
    assert stats["max_open"] == 5
    replayed(c, 5)
    for worker in c.workers:
        loaded = Path(f"/proc/{worker.process.pid}/maps").read_text()
        assert "pyarrow" in loaded and "pandas" not in loaded, "40 MB, for a second of CPU time"
    frozen = [line for line in c.logs() if line["event"] == "limit_frozen"]
    assert [(line["limit"], line["level"]) for line in frozen] == [(5, "INFO")]
    keys = {"event", "agent", "dimension"}
    events = {line["event"]: line for line in c.logs()}
    for event, more in (("acquired", "active_slots"), ("released", "active_slots"), ("queueing", "queue_depth")):
        assert keys | {more} <= events[event].keys()


@pytest.mark.parametrize("pool", ["sim", "claude"])
def test_refusals_and_failures_are_resolved(cluster, pool):
    c = cluster("--latency", "0.05", "--noise-429", "0.1", "--fail-5xx", "0.05", "--retry-after-value", "0.1",
                RETRY_MAX_ATTEMPTS="6", DICAST_REQUEUE_BUDGET="20")  # fmt: skip
    c.worker()
    job_id = c.submit(a_job(items=5, pool=pool))
    report = c.report(job_id)
    check_whole(c, job_id, report, 150)
    assert report["scored"] == 150
    assert report["retries"] + report["requeues"] == c.provider.stats()["calls"] - 150
    replayed(c, 5)
    retries = [line for line in c.logs() if line["event"] == "retry"]
    assert {429} < {line["status_code"] for line in retries} <= {429, 500, 502, 503, 504}
    assert {"agent", "dimension", "attempt", "status_code", "delay_s"} <= retries[0].keys()


def test_a_unit_that_keeps_failing_is_recorded_and_the_rest_goes_on(cluster):
    c = cluster("--latency", "0.02", "--model", "broken:fail_5xx=1.0")
    c.worker()
    job = a_job(agents=2, dimensions=3)
    job["agents"][0]["model"] = "broken"
    job_id = c.submit(job)
    report = c.report(job_id)
    check_whole(c, job_id, report, 6)
    assert (report["scored"], report["failed"]) == (3, 3)
    assert c.provider.stats()["calls"] == 3 + 3 * 3
    unscored = [o for o in c.opinions(job_id) if o["score"] is None]
    assert {o["argument"] for o in unscored} == {"Evaluation failed after 3 retries"}
    assert {o["attempts"] for o in unscored} == {3}
    failed = [line for line in c.logs() if line["event"] == "failed"]
    assert len(failed) == 3
    assert {"dimension", "agent", "status_code", "elapsed_s"} <= failed[0].keys()
    assert {line["level"] for line in failed} == {"ERROR"}


def test_calls_that_never_end_are_cut_and_retried(cluster):
    c = cluster("--latency", "0.02", "--fault", "hang=0.2", LLM_CALL_TIMEOUT="1", RETRY_MAX_ATTEMPTS="8")
    c.worker()
    job_id = c.submit(a_job(agents=1))
    report = c.report(job_id)
    check_whole(c, job_id, report, 10)
    assert report["scored"] == 10
    timeouts = [line for line in c.logs() if line["event"] == "timeout"]
    assert len(timeouts) == report["timeouts"] > 0
    assert {(line["level"], line["timeout_s"]) for line in timeouts} == {("WARNING", 1.0)}


@pytest.mark.parametrize("pool", ["sim", "claude"])
def test_batches_ask_once_and_what_is_missing_one_by_one(cluster, pool):
    c = cluster("--latency", "0.05", BATCHING_ENABLED="true")
    c.worker()
    job_id = c.submit(a_job(items=4, pool=pool))
    report = c.report(job_id)
    check_whole(c, job_id, report, 120)
    assert (report["scored"], c.provider.stats()["calls"]) == (120, 12)


def test_broken_batches_lose_nothing(cluster):
    faults = ["missing=0.2", "duplicate=0.1", "unknown=0.1", "out_of_range=0.1", "wrong_type=0.1", "invalid_json=0.05"]
    c = cluster("--latency", "0.02", *(o for f in faults for o in ("--fault", f)), BATCHING_ENABLED="true",
                RETRY_MAX_ATTEMPTS="30")  # fmt: skip
    c.worker()
    job_id = c.submit(a_job(items=4))
    report = c.report(job_id)
    check_whole(c, job_id, report, 120)
    assert report["scored"] == 120
    corrupt = [line for line in c.logs() if line["event"] == "corrupt"]
    assert corrupt
    assert {line["level"] for line in corrupt} == {"WARNING"}
    replayed(c, 5)


def test_a_throttled_pool_does_not_stand_in_front_of_another(cluster):
    pools = """
    default = "fast"
    [pools.fast]
    provider = "simulated"
    base_url = "{url}/v1"
    [pools.slow]
    provider = "simulated"
    base_url = "{url}/v1"
    limit = 1
    """
    c = cluster("--latency", "0.1", pools=pools, MAX_CONCURRENT_LLM_CALLS="11")
    c.worker()
    slow = c.submit(a_job(agents=1, dimensions=20, pool="slow"))
    fast = c.submit(a_job(agents=1, dimensions=20, items=10, pool="fast"))
    c.report(fast)
    assert 2 <= c.done(slow) <= 20  # it went on meanwhile: at best one for each tenth of a second
    assert c.report(slow)["scored"] == 20


def test_items_of_a_file_come_page_by_page(cluster, tmp_path):
    rows = [{"id": f"r{n}", "text": f"Row {n} — with «marks»"} for n in range(300)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    c = cluster("--latency", "0.02", MAX_CONCURRENT_LLM_CALLS="20")
    c.worker()
    job_id = c.submit({**a_job(agents=2, dimensions=3), "items": str(path)})
    report = c.report(job_id)
    check_whole(c, job_id, report, 1800)
    assert [o["item_id"] for o in c.opinions(job_id)] == [row["id"] for row in rows for _ in range(6)]


def test_cancel_ends_soon_and_counts_every_unit_that_was_published(cluster):
    c = cluster("--latency", "0.2")
    c.worker()
    job_id = c.submit(a_job(items=20))
    until(lambda: c.done(job_id) >= 10, "some units are done")
    watch = Stopwatch()
    c.app.ledger.cancel(job_id)
    calls = c.provider.stats()["calls"]
    report = c.report(job_id)
    assert watch.s < 60
    assert report["status"] == "cancelled"
    assert c.provider.stats()["calls"] <= calls + 5
    assert report["scored"] >= 10
    assert report["missing"] > 0
    c.quiet()


def test_kill_minus_nine_loses_nothing(cluster):
    pools = """
    [pools.sim]
    provider = "simulated"
    base_url = "{url}/v1"
    limit = 20
    """
    c = cluster("--latency", "1.0", pools=pools, MAX_CONCURRENT_LLM_CALLS="20", **SOON)
    doomed = c.worker()
    c.worker()
    job_id = c.submit(a_job(items=2))
    until(lambda: c.provider.stats()["open"] >= 20, "all leases are in use")
    doomed.kill()
    report = c.report(job_id)
    check_whole(c, job_id, report, 60)
    stats = c.provider.stats()
    assert report["scored"] == 60
    assert stats["max_open"] <= 20
    assert stats["calls"] - 60 <= 20  # at most what was open at the kill
    assert report["possible_double_charges"] >= stats["calls"] - 60
    held = Counter()
    for line in c.logs():
        held[line.get("lease")] += {"acquired": 1, "released": -1}.get(line["event"], 0)
    assert not [lease for lease, left in held.items() if left > 0], "every lease's end is told, whoever ends it"


def test_a_worker_that_joins_after_the_only_one_died_goes_on_at_once(cluster):
    """No beat runs, and every lease is held by the dead: nothing but the newcomer's own housekeeping can free them."""
    c = cluster("--latency", "0.5", **SOON)
    doomed, before = c.worker(), time.time()
    job_id = c.submit(a_job())
    until(lambda: c.provider.stats()["open"] >= 5, "all leases are in use")
    doomed.kill()
    c.worker()
    report = c.report(job_id)
    check_whole(c, job_id, report, 30)
    assert c.provider.stats()["max_open"] <= 5
    started, finished = (datetime.fromisoformat(report[k]).timestamp() for k in ("started", "finished"))
    assert before - 1 <= started <= finished <= time.time() + 1


def test_the_same_job_twice_is_one_job(cluster):
    c = cluster("--latency", "0.05")
    c.worker()
    job = a_job(id="twice")
    assert c.submit(job) == c.submit(job) == "twice"
    assert c.report("twice")["scored"] == 30
    assert c.submit(job) == "twice"  # after its end: the report again
    assert c.report("twice")["scored"] == 30
    assert c.provider.stats()["calls"] == 30


def test_delay_and_get_as_a_caller_does(cluster):
    """From a process of its own: a dict goes in, the report comes back; a wrong job is refused before it is sent."""
    c = cluster("--latency", "0.05")
    c.worker()
    program = f"""
from dicast.app.tasks import evaluate
report = evaluate.delay({a_job()!r}).get(timeout=60)
print(report["scored"], report["status"])
try:
    evaluate.delay({{**{a_job()!r}, "replicas": 2}})
except ValueError as error:
    print("refused", "replicas" in str(error))
"""
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=c.environ, capture_output=True, text=True, check=False
    )
    assert run.stdout.splitlines() == ["30 completed", "refused True"], run.stderr


def test_a_polite_stop_hands_everything_back(cluster):
    c = cluster("--latency", "0.5")
    first = c.worker()
    job_id = c.submit(a_job())
    until(lambda: c.done(job_id) >= 5, "some units are done")
    assert first.stop() == 0
    c.worker()
    report = c.report(job_id)
    check_whole(c, job_id, report, 30)
    assert report["scored"] == 30
    assert c.provider.stats()["calls"] == 30


def test_a_job_at_its_own_limit_holds_up_no_other_of_its_project(cluster):
    """Its messages fill the queue, and it may have one call open."""
    c = cluster("--latency", "0.2", MAX_CONCURRENT_LLM_CALLS="8")
    c.worker()
    slow = c.submit(a_job(items=8, project="g"))
    until(lambda: c.done(slow) >= 8, "the first job runs")
    c.app.store.hset(c.app.keys.job_limits, slow, 1)
    other = c.submit(a_job(items=4, project="g"))
    before = c.done(slow)
    c.report(other)
    assert c.done(slow) - before < 60, "the other, of 120 units, has not waited for its turns"
    c.app.store.hset(c.app.keys.job_limits, slow, 8)
    assert c.report(slow)["scored"] == 240
