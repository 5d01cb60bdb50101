"""`cancel_consumer`, `add_consumer` and `active_queues` on the queues of pools, over both brokers."""

from __future__ import annotations

import pytest
from kombu import pools

from dicast.app.application import create_app
from dicast.app.operator.waiting import depth
from tests.e2e.cluster import a_job, until
from tests.e2e.servers import RabbitMQ, needs_rabbitmq

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def told(cluster, command, *args, **more):
    """The one worker's answer."""
    (reply,) = getattr(cluster.app.control, command)(*args, reply=True, timeout=20, limit=1, **more)
    return reply.popitem()[1]


def names(cluster):
    """None if nobody answers, as where a worker has started and does not listen yet."""
    replies = cluster.app.control.inspect(timeout=5, limit=1).active_queues() or {}
    return next((sorted(queue["name"] for queue in queues) for queues in replies.values()), None)


ALL = ["dicast.beat", "dicast.control", "provider.claude", "provider.sim"]


def check_a_pools_queue_is_read_no_more_and_again(c):
    c.worker()
    until(lambda: names(c) == ALL, "the worker tells its queues")
    first = c.submit(a_job(agents=1, items=4))
    until(lambda: c.done(first) > 3, "it has begun")
    assert told(c, "cancel_consumer", "provider.sim") == {"ok": "no longer consuming from provider.sim"}
    until(lambda: names(c) == ALL[:3], "it is told")
    until(lambda: depth(c.app, "provider.sim") == 40 - c.done(first), "the worker holds no message any more")
    until(lambda: c.provider.stats()["open"] == 0, "open calls have ended")
    calls = c.provider.stats()["calls"]
    assert told(c, "cancel_consumer", "provider.sim") == {"error": "provider.sim is not read here"}
    other = c.submit(a_job(agents=1, pool="claude"))
    assert c.report(other)["scored"] == 10
    assert c.provider.stats()["calls"] == calls + 10
    assert "add consumer provider.sim" in str(told(c, "add_consumer", "provider.sim"))
    assert c.report(first)["scored"] == 40
    assert told(c, "add_consumer", "provider.sim") == {"ok": "provider.sim is read already"}
    until(lambda: names(c) == ALL, "it is told again")
    assert c.report(c.submit(a_job(agents=1, items=2)))["scored"] == 20
    assert c.provider.stats()["max_open"] <= 3
    c.quiet()


def test_a_pools_queue_is_read_no_more_and_again(cluster):
    check_a_pools_queue_is_read_no_more_and_again(
        cluster("--latency", "0.1", MAX_CONCURRENT_LLM_CALLS="3", DICAST_WINDOW_SECONDS="60", DICAST_PAGE_UNITS="40")
    )


@needs_rabbitmq
def test_a_pools_queue_in_rabbitmq_is_read_no_more_and_again(cluster, tmp_path):
    rabbitmq = RabbitMQ(tmp_path / "rabbitmq")
    try:
        check_a_pools_queue_is_read_no_more_and_again(
            cluster("--latency", "0.1", MAX_CONCURRENT_LLM_CALLS="3", DICAST_WINDOW_SECONDS="60",
                    DICAST_PAGE_UNITS="40", DICAST_BROKER_URL=rabbitmq.url)
        )  # fmt: skip
    finally:
        rabbitmq.stop()


def test_a_queue_that_a_worker_did_not_read_from_the_start(cluster):
    """And it stays as it was commanded when the connection is made anew."""
    c = cluster("--latency", "0.05")
    c.worker("-Q", "dicast.control,dicast.beat")
    assert names(c) == ALL[:2]
    assert told(c, "add_consumer", "provider.nowhere") == {"error": "no pool of this worker is called nowhere"}
    job_id = c.submit(a_job(agents=1))
    until(lambda: depth(c.app, "provider.sim") == 10, "nobody reads it")
    assert told(c, "add_consumer", "provider.sim") == {"ok": "add consumer provider.sim"}
    assert c.report(job_id)["scored"] == 10
    assert told(c, "cancel_consumer", "dicast.beat") == {"ok": "no longer consuming from dicast.beat"}
    until(lambda: names(c) == ["dicast.control", "provider.sim"], "it is told")
    before = len([line for line in c.logs() if "the connection to the broker is lost" in line.get("message", "")])
    store, c.app = c.app.store, create_app(c.environ)
    pools.reset()  # this process's own connections are going to be cut too
    for client in store.client_list(_type="normal"):
        if client["cmd"] == "brpop":
            store.client_kill_filter(_id=client["id"])

    def reconnected():
        return len([x for x in c.logs() if "the connection to the broker is lost" in x.get("message", "")]) > before

    until(reconnected, "it has connected anew")
    assert c.report(c.submit(a_job(agents=1)))["scored"] == 10
    assert names(c) == ["dicast.control", "provider.sim"]


def test_what_is_active_is_told_with_its_process(cluster):
    c = cluster("--latency", "2", "--sigma", "0")
    worker = c.worker("-c", "2")
    job_id = c.submit(a_job(agents=1, dimensions=2))
    until(lambda: c.provider.stats()["open"] == 2, "two calls are open")
    (active,) = c.app.control.inspect(timeout=20, limit=1).active().values()
    judged = [task for task in active if task["name"] == "dicast.judge_dimension"]
    assert [task["worker_pid"] for task in judged] == [worker.process.pid] * 2
    assert c.report(job_id)["scored"] == 2
