"""Two installations on one store, and on one RabbitMQ: each judges, tells and obeys for itself alone."""

from __future__ import annotations

from collections import Counter

import kombu
import pytest
import redis

from tests.e2e.cluster import Cluster, Simulated, a_job, until
from tests.e2e.conftest import POOL
from tests.e2e.servers import RabbitMQ, needs_rabbitmq

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SHARED = {"_kombu.binding_deadlines"}
"""kombu's list of when bindings end, by exchanges' names."""


@pytest.fixture
def installations(tmp_path, redis_url):
    """Starts one under a namespace, in a folder of its own; their workers are called alike."""
    provider, running = Simulated(), []

    def start(namespace, **settings):
        folder = tmp_path / namespace
        folder.mkdir()
        pools = POOL.format(url=provider.base_url)
        running.append(Cluster(folder, redis_url, pools, DICAST_NAMESPACE=namespace, **settings))
        running[-1].vouch()
        return running[-1]

    yield start
    for part in [*running, provider]:
        part.stop()


def heard(app, own):
    """The workers whose events reach this application while one of its own is heard three times."""
    times = Counter()

    def note(event):
        times[event["hostname"].split("@")[0]] += 1
        receiver.should_stop = times[own] == 3

    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": note})
        receiver.capture(limit=None, timeout=30, wakeup=True)
    return set(times)


def answering(app):
    return {name.split("@")[0] for reply in app.control.ping(timeout=2.0) for name in reply}


def one_does_not_touch_the_other(blue, green):
    """The same id in both, of different jobs; the workers of one alone run at first."""
    worker = blue.worker("-n", "bluebird@%h")
    green_id = green.submit(a_job(id="verdict", agents=1, dimensions=7))
    blue_id = blue.submit(a_job(id="verdict", agents=1, dimensions=3))
    assert blue_id == green_id
    assert blue.report(blue_id)["scored"] == 3
    assert green.app.ledger.status(green_id).state == "submitted"

    green.worker("-n", "greenfinch@%h")
    assert green.report(green_id)["scored"] == 7
    assert [len(c.opinions("verdict")) for c in (blue, green)] == [3, 7]
    told = [c.app.AsyncResult("verdict").get(timeout=20)["scored"] for c in (blue, green)]
    assert told == [3, 7]
    for c in (blue, green):
        c.quiet()

    assert (answering(blue.app), answering(green.app)) == ({"bluebird"}, {"greenfinch"})
    assert (heard(blue.app, "bluebird"), heard(green.app, "greenfinch")) == ({"bluebird"}, {"greenfinch"})
    blue.app.control.shutdown()
    until(lambda: worker.process.poll() is not None, "the blue worker has ended")
    assert answering(green.app) == {"greenfinch"}
    again = green.submit(a_job(id="verdict-2", agents=1, dimensions=2))
    assert green.report(again)["scored"] == 2


def test_two_installations_on_one_store(installations):
    one_does_not_touch_the_other(installations("dicast"), installations("green"))


def test_every_key_of_an_installation_bears_its_name(installations, redis_url):
    c = installations("green")
    c.worker()
    assert c.report(c.submit(a_job(agents=1, dimensions=4)))["scored"] == 4
    store = redis.Redis.from_url(redis_url, decode_responses=True)
    assert {key for key in store.scan_iter() if "green" not in key} <= SHARED
    assert all("green" in channel for channel in store.pubsub_channels())


@needs_rabbitmq
def test_two_installations_on_one_rabbitmq(installations, tmp_path):
    node = RabbitMQ(tmp_path / "rabbitmq")
    try:
        blue, green = (installations(name, DICAST_BROKER_URL=node.url) for name in ("blue", "green"))
        one_does_not_touch_the_other(blue, green)
        with kombu.Connection(node.url) as connection:
            for name in ("provider.sim", "dicast.control"):
                with pytest.raises(connection.channel_errors):
                    connection.channel().queue_declare(name, passive=True)
    finally:
        for c in (blue, green):
            c.stop()
        node.stop()
