"""Acknowledgements in batches: none is lost while the process lives, none is given for a task that has not ended."""

import kombu.asynchronous
import pytest
from kombu import Connection, Producer, Queue
from kombu.asynchronous import Hub, set_event_loop

import dicast.workers.broker.acknowledgement
from dicast.workers.broker.acknowledgement import batch_acks, pending_acks
from tests.workers.pool_harness import DEADLINE_S, Server, unique, until


@pytest.fixture
def server():
    server = Server()
    yield server
    server.remove()


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr(dicast.workers.broker.acknowledgement, "_pending", {})
    monkeypatch.setattr(dicast.workers.broker.acknowledgement, "TOGETHER_S", 0.0)
    monkeypatch.setattr(dicast.workers.broker.acknowledgement, "RETRY_S", 0.01)
    before = kombu.asynchronous.get_event_loop()
    hub = set_event_loop(Hub())
    yield hub
    hub.close()
    set_event_loop(before)


class Consumer:
    """Takes messages by a channel of its own."""

    def __init__(self, server, queue):
        self.queue = Queue(queue)
        self.connection = Connection(f"redis+socket://{server.socket}")
        self.channel = self.connection.channel()
        batch_acks(self.channel)

    def take(self, count):
        return [self.queue(self.channel).get() for _ in range(count)]


@pytest.fixture
def consume(server, hub, queue):
    """Makes consumers, which are released before their server goes."""
    made = []

    def consume():
        made.append(Consumer(server, queue))
        return made[-1]

    yield consume
    for consumer in made:
        consumer.connection.release()


@pytest.fixture
def queue(server):
    name = unique("q")
    with Connection(f"redis+socket://{server.socket}") as connection:
        Queue(name)(connection.default_channel).declare()
        producer = Producer(connection.default_channel)
        for n in range(20):
            producer.publish({"n": n}, routing_key=name)
    return name


def turn(hub, times=1):
    """What the hub's loop does each time: callbacks, then timers."""
    for _ in range(times):
        for callback in hub._pop_ready():
            callback()
        hub.fire_timers()


def commands(server, name):
    return server.client.info("commandstats").get(f"cmdstat_{name}", {}).get("calls", 0)


def test_one_turn_of_the_hub_is_one_round_trip(server, hub, queue, consume):
    consumer = consume()
    messages = consumer.take(20)
    before = commands(server, "hdel")
    for message in messages:
        hub.call_soon(message.ack)
    assert server.client.hlen("unacked") == 20
    turn(hub)
    assert server.client.hlen("unacked") == server.client.zcard("unacked_index") == 0
    assert commands(server, "hdel") - before == 1
    assert pending_acks() == frozenset()
    consumer.connection.release()
    assert server.client.llen(queue) == 0


def test_those_of_a_moment_share_a_round_trip(server, hub, queue, consume, monkeypatch):
    monkeypatch.setattr(dicast.workers.broker.acknowledgement, "TOGETHER_S", 0.05)
    messages = consume().take(20)
    before = commands(server, "hdel")
    for message in messages:
        message.ack()
        turn(hub)
    until(lambda: turn(hub) or not pending_acks(), "they are sent")
    assert server.client.hlen("unacked") == 0
    assert commands(server, "hdel") - before <= 3, "a busy machine may need more than one round"


def test_an_acknowledged_message_frees_its_place_at_once(server, hub, queue, consume):
    consumer = consume()
    consumer.channel.basic_qos(prefetch_count=2)
    first, _ = consumer.take(2)
    assert not consumer.channel.qos.can_consume()
    first.ack()
    assert consumer.channel.qos.can_consume()
    assert pending_acks() == {first.delivery_tag}


def test_what_is_not_acknowledged_comes_again_when_the_channel_closes(server, hub, queue, consume):
    consumer = consume()
    messages = consumer.take(5)
    messages[0].ack()
    messages[1].reject(requeue=True)
    messages[2].reject(requeue=False)
    consumer.connection.release()
    assert server.client.llen(queue) == 15 + 1 + 2
    assert server.client.hlen("unacked") == 0


def test_acknowledgements_outlive_a_server_that_is_away(server, hub, queue, consume, caplog):
    consumer = consume()
    messages = consumer.take(5)
    server.stop()
    for message in messages:
        message.ack()
    turn(hub)
    assert len(pending_acks()) == 5
    assert "5 acknowledgements wait" in caplog.text
    server.start()
    until(lambda: turn(hub) or not pending_acks(), "acknowledged", DEADLINE_S)
    assert server.client.hlen("unacked") == 0
    assert server.client.llen(queue) == 15


def test_acknowledgements_outlive_their_connection(server, hub, queue, consume):
    consumer = consume()
    messages = consumer.take(3)
    server.stop()
    for message in messages[:2]:
        message.ack()
    turn(hub)
    consumer.connection.collect()  # what the worker does with a connection it has lost
    server.start()
    again = consume()
    assert again.take(1)
    until(lambda: turn(hub) or not pending_acks(), "acknowledged by the new channel", DEADLINE_S)
    tags = set(server.client.hkeys("unacked"))
    assert messages[2].delivery_tag in tags  # has not ended: still ours
    assert not tags & {message.delivery_tag for message in messages[:2]}


def test_a_channel_that_has_received_messages_cannot_change(server, hub, queue):
    with Connection(f"redis+socket://{server.socket}") as connection:
        channel = connection.channel()
        message = Queue(queue)(channel).get()
        with pytest.raises(RuntimeError, match="received messages"):
            batch_acks(channel)
        message.ack()


def test_without_a_hub_each_is_sent_at_once(server, hub, queue, consume):
    set_event_loop(None)
    consumer = consume()
    consumer.take(1)[0].ack()
    assert server.client.hlen("unacked") == 0
    consumer.connection.release()
