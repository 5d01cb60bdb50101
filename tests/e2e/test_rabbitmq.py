"""RabbitMQ's quorum queues as the broker: real workers, a real node that is killed, a provider over HTTP."""

from __future__ import annotations

import time

import kombu
import pytest
from amqp.exceptions import AMQPError

from dicast.app.application import create_app
from dicast.app.operator.store_checks import QUEUE_TYPE, Severity, broker
from dicast.app.pipeline.messages import BEAT_QUEUE, CONTROL_QUEUE
from dicast.workers.broker.dead_letters import DeadLetters
from tests.e2e.cluster import a_job, until
from tests.e2e.servers import RabbitMQ, needs_rabbitmq

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180), needs_rabbitmq]

QUEUES = ("provider.sim", "provider.claude", CONTROL_QUEUE, BEAT_QUEUE)
KEY = "a secret that all processes share"


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    node = RabbitMQ(tmp_path_factory.mktemp("rabbitmq"))
    yield node
    node.stop()


@pytest.fixture
def rabbitmq(node):
    """The node, without queues before and after."""
    yield node
    with kombu.Connection(node.url) as connection:
        for name in QUEUES:
            connection.default_channel.queue_delete(name)


def waiting(rabbitmq, queue):
    with kombu.Connection(rabbitmq.url) as connection:
        return connection.default_channel.queue_declare(queue, passive=True).message_count


def whole(cluster, job_id, units):
    report = cluster.report(job_id)
    assert (report["scored"], report["failed"]) == (units, 0)
    opinions = cluster.opinions(job_id)
    assert len({(o["judge"], o["criterion_id"], o["item_id"]) for o in opinions}) == len(opinions) == units
    cluster.quiet()


def none_was_lost(cluster):
    return not [line for line in cluster.logs() if "were lost and are sent again" in line.get("message", "")]


def all_is_sent(cluster):
    """Return whether nobody is planning: the messages of a page whose planner is killed may never have been sent."""

    def pages():
        found = list(cluster.app.store.scan_iter(match="*:page:*", _type="hash"))
        return sorted(found), [key for key in found if cluster.app.store.hexists(key, "planner")]

    before = pages()
    time.sleep(0.3)
    return before == pages() and bool(before[0]) and not before[1]


def test_units_travel_by_quorum_queues_and_the_backlog_stays_there(rabbitmq, cluster):
    """Signed messages of two pools; foreign ones are set aside; what a killed worker held comes back."""
    c = cluster("--latency", "0.05", DICAST_BROKER_URL=rabbitmq.url, DICAST_MESSAGE_KEY=KEY)
    job = a_job(agents=2, dimensions=10, items=5)
    job["agents"][1]["pool"] = "claude"
    worker = c.worker()
    c.provider.control(latency=60.0)
    job_id = c.submit(job)
    until(lambda: c.provider.stats()["open"] == 5, "as many are open as may be")
    until(lambda: waiting(rabbitmq, "provider.sim") and waiting(rabbitmq, "provider.claude"), "the rest waits")
    until(lambda: all_is_sent(c), "all is sent")
    worker.kill()  # before the foreign ones come: one set aside and not acknowledged yet would be counted again
    with kombu.Connection(rabbitmq.url) as connection, connection.Producer() as producer:
        for queue in ("provider.sim", CONTROL_QUEUE):
            producer.publish(b"\x00\xff", routing_key=queue, content_type="application/x-python-serialize")
            producer.publish({"some": "thing"}, routing_key=queue)
            producer.publish([[], {}, {}], routing_key=queue, headers={"task": "dicast.finish_job", "id": "x"})
        with pytest.raises(AMQPError, match="inequivalent arg 'x-queue-type'"):
            connection.default_channel.queue_declare("provider.sim", durable=True, auto_delete=False)
    c.provider.control(latency=0.05)
    c.worker()
    whole(c, job_id, 100)
    until(lambda: sum(DeadLetters(c.app.store, c.app.keys).counts().values()) == 6, "all are set aside")
    assert DeadLetters(c.app.store, c.app.keys).counts() == {"unsigned": 6}
    until(lambda: [waiting(rabbitmq, queue) for queue in QUEUES[:3]] == [0, 0, 0], "nothing waits")
    assert none_was_lost(c)


def test_the_units_of_a_killed_worker_go_on_at_once(rabbitmq, cluster):
    """RabbitMQ knows of a death before the nodes do: what it brings back is not taken for a copy."""
    c = cluster("--latency", "2.0", DICAST_BROKER_URL=rabbitmq.url)
    doomed, _ = c.worker(), c.worker()
    job_id = c.submit(a_job(agents=3, dimensions=12))
    store, keys = c.app.store, c.app.keys
    until(lambda: c.done(job_id) >= 3 and any("w0@" in held for held in store.hvals(keys.holders)), "it has leases")
    time.sleep(0.7)  # for its calls to be made; they take longer
    doomed.kill()
    whole(c, job_id, 36)
    assert c.provider.stats()["calls"] <= 36 + 5
    (lost,) = [line for line in c.logs() if line["event"] == "node_lost"]
    assert lost["node"].startswith("w0@") and lost["leases"] >= 1
    assert c.app.ledger.status(job_id).counters["possible_double_charges"] >= 1
    assert none_was_lost(c), "no sweeper had to help"


def test_a_broker_that_dies_during_calls_fails_no_unit_and_costs_no_call(rabbitmq, cluster):
    c = cluster("--latency", "0.5", DICAST_BROKER_URL=rabbitmq.url)
    worker = c.worker()
    job_id = c.submit(a_job(agents=3, dimensions=12))
    until(lambda: c.done(job_id) >= 8 and c.provider.stats()["open"], "calls are open")
    rabbitmq.kill()
    until(lambda: not c.provider.stats()["open"], "the open calls have ended")
    assert c.done(job_id) < 36
    rabbitmq.start()
    whole(c, job_id, 36)
    assert c.provider.stats()["calls"] == 36
    assert worker.process.poll() is None


def test_queues_of_another_kind_are_told_and_not_worked_on(rabbitmq, cluster):
    c = cluster(DICAST_BROKER_URL=rabbitmq.url)
    assert {f.area: f.severity for f in broker(c.app)} == {"broker": Severity.OK}
    with kombu.Connection(rabbitmq.url) as connection:
        connection.default_channel.queue_declare("provider.sim", durable=True, auto_delete=False)
    assert {f.area: f.severity for f in broker(c.app)} == {"broker": Severity.OK, QUEUE_TYPE: Severity.ERROR}
    assert waiting(rabbitmq, "provider.sim") == 0
    with pytest.raises(RuntimeError, match=r"queue provider\.sim was made with other arguments"):
        c.worker()
    away = create_app({**c.environ, "DICAST_BROKER_URL": "amqp://guest:pw@127.0.0.1:1//"})
    (finding,) = broker(away)
    assert finding.message.startswith("127.0.0.1:1 does not answer")
