"""What is revoked ends, and nothing else does: by Celery's own command, clients and results, against real workers."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter

import pytest
from celery.exceptions import TaskRevokedError

from dicast.app.operator.remote_control import CommandRefused
from tests import processes
from tests.e2e.cluster import DEADLINE_S, ROOT, a_job, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SLOW = ("--latency", "1.5", "--sigma", "0")


def celery(cluster, *args):
    """What `celery -A app ...` says."""
    done = processes.run(["celery", "-A", "app", *args], cluster.environ, ROOT, timeout=DEADLINE_S)
    return done.stdout + done.stderr


def unit_ids(cluster, job_id):
    """The ids of a job's units that are in work: nothing else tells them but Flower and the logs."""
    jobs, found = f"{{dicast}}:job:{job_id}", []
    for member in sorted(until(lambda: cluster.app.store.smembers(f"{jobs}:pages"), "a page is open")):
        lane, incarnation, page = member.replace("|", ".").split(".")
        first, units = map(int, cluster.app.store.hmget(f"{jobs}:page:{incarnation}:{lane}:{page}", "first", "units"))
        found += [f"{job_id}~{incarnation}.{lane}.{page}.{position}" for position in range(first, first + units)]
    return found


def kinds(cluster, job_id):
    return Counter(error["kind"] for error in cluster.errors(job_id))


def test_a_revoked_unit_ends_as_cancelled_and_its_job_completes(cluster):
    c = cluster("--latency", "15", "--sigma", "0")
    c.worker("-c", "1")
    job_id = c.submit(a_job(agents=1, dimensions=3))
    until(lambda: c.provider.stats()["open"] == 1, "the first is being called")
    *_, last = unit_ids(c, job_id)
    assert f"unit {last} is revoked: it gets no call" in celery(c, "control", "revoke", last)
    c.provider.control(latency=0.05, answer=True)
    report = c.report(job_id)
    assert (report["status"], report["scored"], kinds(c, job_id)) == ("completed", 2, {"cancelled": 1})
    assert [error["message"] for error in c.errors(job_id)] == ["it was revoked"]
    assert c.provider.stats()["calls"] == 2
    assert f"unit {last} is not in work: nothing is revoked" in celery(c, "control", "revoke", last)
    assert f"job {job_id} has ended (completed): nothing is left to revoke" in celery(c, "control", "revoke", job_id)
    assert c.report(job_id)["scored"] == 2


def test_a_terminated_unit_is_cut_and_not_called_again(cluster):
    c = cluster("--latency", "60", "--sigma", "0", LLM_CALL_TIMEOUT="100")
    c.worker("-c", "1")
    job_id = c.submit(a_job(agents=1, dimensions=2))
    until(lambda: c.provider.stats()["open"] == 1, "one is being called")
    c.provider.control(latency=0.05)
    units = unit_ids(c, job_id)
    said = celery(c, "control", "terminate", "TERM", *units)
    assert "its open call is cut, and none is made again" in said
    assert "it gets no call" in said
    report = c.report(job_id)
    assert (report["status"], kinds(c, job_id)) == ("completed", {"cancelled": 2})
    assert c.provider.stats()["calls"] == 1
    assert (report["calls_without_answer"], report["possible_double_charges"]) == (1, 0)
    c.quiet()


def test_a_revoked_job_is_cancelled_and_who_waits_for_it_is_told(cluster):
    c = cluster(*SLOW)
    c.worker("-c", "2")
    job_id = c.submit(a_job(agents=1, dimensions=8))
    until(lambda: c.provider.stats()["open"] == 2, "two are being called")
    result = c.app.AsyncResult(job_id)
    result.revoke()
    with pytest.raises(TaskRevokedError, match="revoked"):
        result.get(timeout=DEADLINE_S)
    report = c.report(job_id)
    assert (report["status"], report["scored"]) == ("cancelled", 2)
    assert c.provider.stats()["calls"] == 2


@pytest.mark.parametrize(
    "options", [(), ("-I", "tests.e2e.late_news")], ids=["as it is", "before Celery has heard of its calls"]
)
def test_a_terminated_job_ends_at_once(cluster, options):
    c = cluster("--latency", "60", "--sigma", "0", LLM_CALL_TIMEOUT="100")
    c.worker("-c", "2", *options)
    job_id = c.submit(a_job(agents=1, dimensions=8))
    until(lambda: c.provider.stats()["open"] == 2, "two are being called")
    result = c.app.AsyncResult(job_id)
    result.revoke(terminate=True)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=20)
    assert c.report(job_id)["status"] == "cancelled"
    assert c.provider.stats()["calls"] == 2
    c.quiet()


def test_a_job_that_is_terminated_at_any_moment_of_its_start_ends_at_once(cluster):
    """Whatever its units were about: the ledger, the call, or the end of a page."""
    c = cluster("--latency", "0.5")
    c.worker("-c", "5")
    chance = random.Random(7)
    for _ in range(20):
        job_id = c.submit(a_job(agents=1, dimensions=20))
        time.sleep(0.12 * chance.random())
        c.app.AsyncResult(job_id).revoke(terminate=True)
        assert c.report(job_id, 20)["status"] == "cancelled"
    c.quiet()


def test_what_is_revoked_while_no_worker_is_up_stays_revoked(cluster):
    """A worker remembers nothing of it, whatever state it has kept."""
    c = cluster("--latency", "0.05")
    statedb = f"--statedb={c.folder / 'state.db'}"
    first = c.worker(statedb)
    job_id = c.submit(a_job(agents=1, dimensions=20, items=5))
    until(lambda: c.done(job_id) > 3, "it has begun")
    assert first.stop() == 0
    never, later = c.submit(a_job(agents=1, id="never")), c.submit(a_job(agents=1, dimensions=3, id="later"))
    waits = unit_ids(c, job_id)[-1]
    assert f"job {never} is revoked" in celery(c, "control", "revoke", never)
    c.app.control.revoke(waits)
    c.worker(statedb)
    assert c.report(later)["scored"] == 3
    assert c.report(never)["calls"] == 0
    report = c.report(job_id)
    assert (report["scored"], kinds(c, job_id)) == (99, {"cancelled": 1})


def test_ids_that_a_worker_kept_as_revoked_end_nothing(cluster):
    """As of a worker that was revoked units by before the ledger was asked: none of their messages is discarded."""
    c = cluster(*SLOW)
    statedb = f"--statedb={c.folder / 'state.db'}"
    worker = c.worker(statedb, "-c", "1")
    job_id = c.submit(a_job(agents=1, dimensions=4))
    until(lambda: c.provider.stats()["open"] == 1, "one is being called")
    ids = [*unit_ids(c, job_id), job_id, unit_ids(c, job_id)[0].rpartition(".")[0]]
    keep = (
        "import sys, celery.worker.state as state; kept = state.Persistent(state, sys.argv[1]); "
        "state.revoked.update(sys.argv[2:]); kept.save()"
    )
    worker.stop()
    subprocess.run([sys.executable, "-c", keep, str(c.folder / "state.db"), *ids], check=True, cwd=ROOT)
    c.worker(statedb)
    until(lambda: ids[0] in str(c.app.control.inspect().revoked()), "the worker tells what it holds revoked")
    assert c.report(job_id)["scored"] == 4


def test_pages_and_control_work_are_not_revoked(cluster):
    c = cluster(*SLOW)
    c.worker("-c", "1")
    job_id = c.submit(a_job(agents=1, dimensions=3))
    until(lambda: c.provider.stats()["open"] == 1, "it has begun")
    page = unit_ids(c, job_id)[0].rpartition(".")[0]
    told = celery(c, "control", "revoke", page)
    assert f"{page} gathers a page, which cannot be revoked: revoke its job, {job_id}" in told
    with pytest.raises(CommandRefused, match="gathers a page"):
        c.app.AsyncResult(page).revoke()
    with pytest.raises(CommandRefused, match="by their ids"):
        c.app.AsyncResult(job_id).revoke_by_stamped_headers({"a": "b"})
    assert "by their ids" in celery(c, "control", "revoke_by_stamped_headers", "a=b")
    assert "no job or unit is called nobody" in celery(c, "control", "revoke", "nobody")
    assert c.report(job_id)["scored"] == 3


def test_what_is_purged_is_sent_again(cluster):
    c = cluster("--latency", "0.05")
    worker = c.worker("-c", "1")
    job_id = c.submit(a_job(agents=1, dimensions=40))
    until(lambda: c.done(job_id) > 2, "it has begun")
    assert worker.stop() == 0
    unstarted = c.submit(a_job(agents=1, dimensions=2, id="unstarted"))
    said = celery(c, "purge", "-f")
    assert "Purged" in said
    c.worker()

    def swept():
        c.app.store.hincrby(c.app.keys.clock, "now", 20_000)
        return c.app.ledger.status(job_id).state.ended

    until(swept, "the sweeper has found it")
    assert c.report(job_id)["scored"] == 40
    assert c.report(unstarted)["scored"] == 2
