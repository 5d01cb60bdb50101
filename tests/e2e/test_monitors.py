"""What a monitor such as Flower is told, by Celery's own receiver and its picture of the cluster."""

from __future__ import annotations

import threading

import pytest
from celery.events.state import State

from tests.e2e.cluster import a_job, until

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

    def of(self, name):
        return [task for task in self.state.tasks.values() if task.name == name]


def test_a_monitor_sees_the_work_and_the_workers_and_nothing_else(cluster):
    c = cluster("--latency", "0.05")
    worker = c.worker("-E", "-B")

    def ticks():
        (stats,) = c.app.control.inspect().stats().values()
        return stats["total"].get("dicast.housekeeping", 0)

    until(ticks, "the beat ticks")
    with Monitor(c) as monitor:
        job_id = c.submit(a_job(agents=1, dimensions=5))
        assert c.report(job_id)["scored"] == 5
        until(lambda: getattr(monitor.state.tasks.get(job_id), "state", "") == "SUCCESS", "the job is told to be done")
        until(lambda: [t.state for t in monitor.of("dicast.judge_dimension")] == ["SUCCESS"] * 5, "its units, too")
        before = ticks()
        until(lambda: ticks() > before, "the beat ticks on")
        revoked = c.submit(a_job(agents=1, dimensions=5, id="revoked"))
        c.app.control.revoke(revoked)
        until(lambda: getattr(monitor.state.tasks.get(revoked), "state", "") == "REVOKED", "the other one is revoked")
    assert {(w.hostname.partition("@")[0], w.pid) for w in monitor.state.workers.values()} == {
        ("w0", worker.process.pid)
    }
    assert {task.name for task in monitor.state.tasks.values()} <= {
        "dicast.evaluate", "dicast.judge_dimension", "dicast.gather_page", "dicast.plan_lane", "dicast.finish_job",
    }  # fmt: skip
    assert {task.routing_key for task in monitor.of("dicast.judge_dimension")} == {"provider.sim"}
    assert {task.routing_key for task in monitor.of("dicast.evaluate")} == {"dicast.control"}
    assert {task.worker.hostname for task in monitor.state.tasks.values()} == set(monitor.state.workers)
