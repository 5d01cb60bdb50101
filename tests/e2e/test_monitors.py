"""What a monitor such as Flower is told, by Celery's own receiver and its picture of the cluster."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from celery.events.state import State

from tests.e2e.cluster import ROOT, a_job, until
from tests.e2e.servers import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


class Monitor:
    """Receives events until it is left, into a state as Flower keeps one."""

    def __init__(self, cluster):
        self.state, self.types = State(), []
        self._app, self._leave = cluster.app, threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._receive)

    def _receive(self):
        def note(event):
            self.types.append(event["type"])
            self.state.event(event)

        with self._app.connection_for_read() as connection:
            receiver = self._app.events.Receiver(connection, handlers={"*": note})
            consuming = receiver.itercapture(limit=None, timeout=0.2, wakeup=False)
            while not self._leave.is_set():
                try:
                    next(consuming)
                    self._ready.set()
                except (TimeoutError, StopIteration):
                    consuming = receiver.itercapture(limit=None, timeout=0.2, wakeup=False)
                    self._ready.set()

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_):
        self._leave.set()
        self._thread.join(20)

    def workers(self):
        return {(worker.hostname.partition("@")[0], worker.pid) for worker in list(self.state.workers.values())}

    def of(self, name):
        return [task for task in self.state.tasks.values() if task.name == name]


def test_a_monitor_sees_the_work_and_the_workers_and_nothing_else(cluster):
    c = cluster("--latency", "0.05")
    worker = c.worker("-E", "-B")

    def ticks():
        replies = c.app.control.inspect(timeout=20, limit=1).stats() or {}  # None from a worker that stood still
        return sum(stats["total"].get("dicast.housekeeping", 0) for stats in replies.values())

    until(ticks, "the beat ticks")
    with Monitor(c) as monitor:
        job_id = c.submit(a_job(agents=1, dimensions=5))
        assert c.report(job_id)["scored"] == 5
        until(lambda: getattr(monitor.state.tasks.get(job_id), "state", "") == "SUCCESS", "the job is told to be done")
        until(lambda: [t.state for t in monitor.of("dicast.judge_dimension")] == ["SUCCESS"] * 5, "its units, too")
        before = until(ticks, "the beat has ticked")
        until(lambda: ticks() > before, "the beat ticks on")
        c.provider.control(latency=2.0)  # it must not be done before it is revoked
        revoked = c.submit(a_job(agents=1, dimensions=5, id="revoked"))
        c.app.control.revoke(revoked)
        until(lambda: getattr(monitor.state.tasks.get(revoked), "state", "") == "REVOKED", "the other one is revoked")
        until(lambda: monitor.workers() == {("w0", worker.process.pid)}, "the worker has told of itself, and no other")
        # The job's end may be heard before its worker's buffered events, of which the first has the name.
        until(lambda: all(task.name for task in list(monitor.state.tasks.values())), "all tasks have a name")
    assert {task.name for task in monitor.state.tasks.values()} <= {
        "dicast.evaluate", "dicast.judge_dimension", "dicast.gather_page", "dicast.plan_lane", "dicast.finish_job",
    }  # fmt: skip
    assert {task.routing_key for task in monitor.of("dicast.judge_dimension")} == {"provider.sim"}
    assert {task.routing_key for task in monitor.of("dicast.evaluate")} == {"dicast.control"}
    assert {task.worker.hostname for task in monitor.state.tasks.values()} == set(monitor.state.workers)


class Flower:
    """The real one, asked over its HTTP interface, whose answers are those of its buttons."""

    def __init__(self, cluster):
        (port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "celery", "-A", "app", "flower", "--address=127.0.0.1", f"--port={port}"]
        environ = {**cluster.environ, "FLOWER_UNAUTHENTICATED_API": "true"}
        with (cluster.folder / "flower.log").open("wb") as log:
            self.process = subprocess.Popen(command, env=environ, cwd=ROOT, stdout=log, stderr=log)
        until(lambda: self.ask("/healthcheck", "GET") == "OK", "Flower answers")

    def ask(self, path, method="POST", **fields):
        data = urlencode(fields).encode() if method == "POST" else None
        try:
            with urlopen(Request(self._url + path, data=data, method=method), timeout=20) as reply:
                return reply.read().decode()
        except HTTPError as refused:
            return refused.read().decode()
        except URLError:
            return ""

    def tasks(self):
        return json.loads(self.ask("/api/tasks", "GET")).values()

    def stop(self):
        self.process.terminate()
        self.process.wait(20)


def test_flower_shows_the_work_and_its_buttons_do_or_say_no(cluster):
    c = cluster("--latency", "0.5")
    flower = Flower(c)
    try:
        c.worker("-E")  # Flower asks for events only every few seconds
        (name,) = until(lambda: json.loads(flower.ask("/api/workers?refresh=1", "GET") or "{}"), "it knows the worker")
        assert c.report(c.submit(a_job(agents=1, dimensions=6)))["scored"] == 6

        def shown():
            return Counter((t["name"], t["state"], t["routing_key"]) for t in flower.tasks())

        until(lambda: shown()["dicast.judge_dimension", "SUCCESS", "provider.sim"] == 6, "the units are shown")
        until(lambda: shown()["dicast.evaluate", "SUCCESS", "dicast.control"] == 1, "the job is shown")
        assert not [t for t in flower.tasks() if t["name"] in ("dicast.housekeeping", "dicast.governor")]
        assert list(json.loads(flower.ask("/api/workers", "GET"))) == [name]
        said = flower.ask("/api/task/rate-limit/dicast.judge_dimension", workername=name, ratelimit="5/s")
        assert "dicast governor set" in said
        assert "LLM_CALL_TIMEOUT" in flower.ask("/api/task/timeout/dicast.judge_dimension", workername=name, soft="5")
        assert "start it again" in flower.ask(f"/api/worker/pool/restart/{name}")
        assert "Growing" in flower.ask(f"/api/worker/pool/grow/{name}?n=2")
        assert "no longer consuming" in flower.ask(f"/api/worker/queue/cancel-consumer/{name}?queue=provider.claude")
        c.provider.control(latency=5.0)  # it must not be done before it is revoked
        job_id = c.submit(a_job(agents=1, dimensions=20))
        assert "Revoked" in flower.ask(f"/api/task/revoke/{job_id}?terminate=true")
        assert c.report(job_id)["status"] == "cancelled"
    finally:
        flower.stop()


def test_flower_shows_which_units_failed_and_which_come_again(cluster):
    """A unit whose calls are all refused has failed, one that waits for its next call is retried, and no log has a
    traceback. The job counts them all and is done."""
    c = cluster("--latency", "0.05", RETRY_MAX_ATTEMPTS="1")
    flower = Flower(c)
    try:
        worker = c.worker("-E")
        until(lambda: json.loads(flower.ask("/api/workers?refresh=1", "GET") or "{}"), "it knows the worker")

        def units(job_id):
            shown = [t for t in flower.tasks() if t["uuid"].startswith(f"{job_id}~") and "judge" in t["name"]]
            return Counter(t["state"] for t in shown), {t["exception"] for t in shown if t["state"] == "FAILURE"}

        c.provider.control(faults={"invalid_json": 1.0})
        job_id = c.submit(a_job(agents=1, dimensions=4))
        assert c.report(job_id)["failed"] == 4
        until(lambda: units(job_id)[0] == {"FAILURE": 4}, "its failed units are shown")
        for exception in units(job_id)[1]:
            assert exception.startswith("malformed: ") and "text to judge" not in exception
        listed = json.loads(flower.ask("/api/tasks?state=FAILURE", "GET"))
        assert {task["name"] for task in listed.values()} == {"dicast.judge_dimension"}
        until(lambda: c.app.AsyncResult(job_id).state == "SUCCESS", "the job is done all the same")

        c.provider.control(faults={}, noise_429=1.0, retry_after_value="3")
        job_id = c.submit(a_job(agents=1, dimensions=2, id="later"))
        until(lambda: units(job_id)[0] == {"RETRY": 2}, "units that come again are shown as such")
        c.provider.control(noise_429=0.0)
        assert c.report(job_id)["scored"] == 2
        until(lambda: units(job_id)[0] == {"SUCCESS": 2}, "they are done")
        assert "Traceback" not in worker.log.read_text()
    finally:
        flower.stop()


def test_the_state_of_a_job_is_what_it_does(cluster):
    c = cluster("--latency", "0.5", "--sigma", "0")
    waits = c.app.AsyncResult(c.submit(a_job(agents=1, dimensions=12)))
    assert waits.state == "PENDING"
    c.worker("-c", "2", "-B")
    until(lambda: waits.state == "PROGRESS", "it runs")
    info = until(lambda: 0 < (waits.info or {}).get("done", 0) < 12 and waits.info, "it tells how far it is")
    assert (info["total"], info["state"], info["failed"]) == (12, "running", 0)
    assert waits.get(timeout=60)["scored"] == 12
    assert waits.state == "SUCCESS"

    c.provider.control(latency=2.0)
    revoked = c.app.AsyncResult(c.submit(a_job(agents=1, dimensions=12, id="revoked")))
    until(lambda: revoked.state == "PROGRESS", "it runs")
    revoked.revoke()
    assert revoked.state == "REVOKED"
    assert c.report("revoked")["status"] == "cancelled"
    assert revoked.state == "REVOKED"


def test_a_task_that_a_worker_does_not_know_goes_to_one_that_does_or_fails(cluster):
    c = cluster("--latency", "0.05", PYTHONPATH=str(ROOT / "examples"))
    stranger = c.worker()
    report = {"job_id": "j", "project": "p", "units": 1, "scored": 1}
    follow_up = c.app.signature("follow_up.headline", args=(report,), queue="dicast.control")
    nobody_has_it = follow_up.apply_async()
    headline = c.app.signature("follow_up.headline")
    in_a_chain = (headline.clone(args=(report,)) | headline).apply_async()
    with pytest.raises(Exception, match=r"follow_up\.headline") as failed:
        nobody_has_it.get(timeout=60)
    assert type(failed.value).__name__ == "NotRegistered"
    with pytest.raises(Exception, match=r"follow_up\.headline"):
        in_a_chain.get(timeout=60)
    told = [line for line in c.logs() if line["event"] == "unknown_task"]
    assert {line["task"] for line in told} == {"follow_up.headline"}
    assert "-I" in told[-1]["message"]

    c.worker("-I", "follow_up")
    results = [follow_up.apply_async() for _ in range(4)]
    assert [result.get(timeout=60) for result in results] == ["j: 1 of 1 scored"] * 4
    assert stranger.process.poll() is None
