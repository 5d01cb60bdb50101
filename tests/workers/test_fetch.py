"""Messages taken many at a time are noted as kombu notes them; what is no message is set aside."""

import json
from queue import Empty

import pytest
from kombu import Connection, Consumer, Producer, Queue
from kombu.transport.redis import QoS

from dicast.workers.broker.acknowledgement import batch_acks
from dicast.workers.broker.fetch import fetch_in_batches, read_pops
from tests.e2e.cluster import until
from tests.workers.pool_harness import DEADLINE_S, Server, unique


@pytest.fixture
def server():
    server = Server()
    yield server
    server.remove()


class Taker:
    """A channel that takes from one queue, turn by turn, without a hub."""

    def __init__(self, server, room=8):
        self.redis, self.room, self.bodies, self.refused, self.in_hand = server.client, room, [], [], []
        self.queue = Queue(unique("q"))
        self.socket = server.socket
        self.connect()

    def connect(self):
        self.connection = Connection(f"redis+socket://{self.socket}", transport_options={"brpop_timeout": 0.1})
        self.channel = self.connection.channel()
        batch_acks(self.channel)
        fetch_in_batches(self.channel, lambda: self.room, lambda *facts: self.refused.append(facts), self.in_hand)
        consumer = Consumer(self.channel, [self.queue], on_message=lambda m: self.bodies.append(m.payload))
        consumer.consume()
        self.channel.client.connection = self.channel.client.connection_pool.get_connection()  # as kombu's poller does

    def publish(self, *bodies):
        with self.connection.clone() as connection:
            producer = Producer(connection.default_channel)
            for body in bodies:
                producer.publish(body, routing_key=self.queue.name)

    def turn(self):
        """One pop and its reading; returns the bodies that came."""
        self.bodies.clear()
        self.channel._brpop_start(timeout=0.1)
        self.channel.handlers["BRPOP"]()
        return list(self.bodies)

    def unacked(self):
        return self.redis.hgetall(self.channel.unacked_key)


@pytest.fixture
def taker(server):
    taker = Taker(server)
    yield taker
    taker.connection.release()


def test_as_many_as_there_is_room_for_in_order(taker):
    taker.publish(*range(20))
    assert taker.turn() == list(range(8))
    taker.room = 1
    assert taker.turn() == [8]
    taker.room = 100
    assert taker.turn() == list(range(9, 20))
    with pytest.raises(Empty):
        taker.turn()


def test_no_room_asks_for_nothing(taker):
    taker.room = 0
    assert not taker.channel.qos.can_consume()
    taker.room = 1
    assert taker.channel.qos.can_consume()


def test_they_are_noted_as_kombu_notes_them(taker):
    """Entry by entry what kombu's own `append` writes of the same message."""
    taker.publish({"text": 'é "quoted" \u2028'}, {"n": 1.5, "big": 2**60})
    taker.turn()
    noted = {tag: json.loads(entry) for tag, entry in taker.unacked().items()}
    index = taker.redis.zrange(taker.channel.unacked_index_key, 0, -1, withscores=True)
    assert {tag for tag, _ in index} == noted.keys()
    taker.redis.delete(taker.channel.unacked_key)
    for tag in list(taker.channel.qos._delivered):
        QoS.append(taker.channel.qos, taker.channel.qos._delivered[tag], tag)
    assert {tag: json.loads(entry) for tag, entry in taker.unacked().items()} == noted


def test_what_is_put_back_comes_again(taker):
    taker.publish("a", "b")
    assert taker.turn() == ["a", "b"]
    for tag in list(taker.unacked()):
        taker.channel.qos.restore_by_tag(tag.decode() if isinstance(tag, bytes) else tag)
    assert taker.unacked() == {}
    assert sorted(taker.turn()) == ["a", "b"]


def test_what_was_popped_and_not_noted_is_put_back_by_the_next_channel(server, taker):
    """A server that goes away between pop and note loses no message of a living process."""
    taker.publish("a", "b")
    taker.channel._brpop_start(timeout=0.1)
    until(lambda: server.client.llen(taker.queue.name) == 1, "the first is popped", DEADLINE_S)
    server.stop()
    with pytest.raises(taker.channel.connection_errors):
        taker.channel.handlers["BRPOP"]()
    taker.connection.collect()
    server.start()
    assert server.client.llen(taker.queue.name) == 1
    taker.connect()
    assert taker.turn() == ["a", "b"]
    assert len(taker.unacked()) == 2
    assert taker.in_hand == []


def test_what_was_popped_and_not_read_when_another_connection_broke_is_put_back(server, taker):
    taker.publish("a", "b")
    taker.channel._brpop_start(timeout=0.1)
    until(lambda: server.client.llen(taker.queue.name) == 1, "the first is popped", DEADLINE_S)
    server.stop()
    read_pops([taker.channel], taker.in_hand)
    read_pops([taker.channel], taker.in_hand)
    taker.connection.collect()
    server.start()
    taker.connect()
    assert taker.turn() == ["a", "b"]
    assert len(taker.unacked()) == 2


def test_a_pop_that_has_brought_nothing_is_not_waited_for(server, taker):
    taker.channel._brpop_start(timeout=0.1)
    read_pops([taker.channel], taker.in_hand)
    assert taker.in_hand == []


@pytest.mark.parametrize("garbage", ["\x00\xff", "{", "[]", '"text"', '{"properties": {}}', '{"properties": 7}', "nul"])
def test_what_is_no_message_is_set_aside_and_the_rest_comes(taker, garbage):
    taker.publish("before")
    taker.redis.lpush(taker.queue.name, garbage)
    taker.publish("after")
    assert taker.turn() == ["before", "after"]
    assert len(taker.unacked()) == 2
    assert taker.refused == [(taker.queue.name, "unreadable", garbage.encode())]


@pytest.mark.parametrize(
    "change",
    [{"headers": []}, {"headers": {"compression": "zlib"}}, {"body": "not base64 \u00e9"}, {"content-encoding": 5},
     {"properties": {"delivery_info": {"exchange": float("nan")}}}, {"properties": {"delivery_tag": ""}}],
    ids=repr,
)  # fmt: skip
def test_what_looks_like_a_message_and_is_none_is_in_nobodys_hands(taker, change):
    """It was noted as unacknowledged before it was looked at, and nobody would ever acknowledge it."""
    taker.publish("before")
    message = json.loads(taker.redis.lindex(taker.queue.name, 0))
    properties = change.pop("properties", {})
    info = {**message["properties"]["delivery_info"], **properties.pop("delivery_info", {})}
    message["properties"] |= {"delivery_tag": "odd", "delivery_info": info, **properties}
    taker.redis.lpush(taker.queue.name, json.dumps({**message, **change}))
    taker.publish("after")
    assert taker.turn() == ["before", "after"]
    assert len(taker.unacked()) == 2
    assert [reason for _, reason, _ in taker.refused] == ["unreadable"]


def test_what_a_pending_pop_brings_to_a_closed_queue_can_go_back(taker):
    """kombu reads no pop while there is no room: a queue that is closed meanwhile would swallow a message."""
    closed = []
    fetch_in_batches(taker.channel, lambda: taker.room, print, taker.in_hand, lambda: bool(closed))
    can_consume = taker.channel.qos.can_consume
    taker.channel._brpop_start(timeout=5)
    taker.room = 0
    assert not can_consume(), "full: it stays where it is until there is room"
    closed.append(True)
    assert can_consume()
    taker.publish("late")
    taker.channel.handlers["BRPOP"]()
    assert taker.bodies == ["late"]
    assert not can_consume(), "nothing is asked for anew"
