"""Heirs: what the dead held comes back, and can be worked on at once."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import orjson
import redis
from celery import Celery
from kombu import Exchange, Queue

from dicast.workers.broker.dead_letters import RETURNS
from dicast.workers.nodes import reaper
from dicast.workers.nodes.registry import Node, Registry
from dicast.workers.store.connection import connect
from dicast.workers.store.keys import Keys

KEYS = Keys("test")


def test_a_dead_node_owns_nothing_when_its_messages_come_back(redis_url, monkeypatch):
    """A message that comes back while the dead node's beacon still stands finds its unit owned, and is gone again."""
    registry = Registry(connect(redis_url), KEYS)
    living = Node.for_this_process("w@h", limit=1, slots=1)
    dead = replace(living, id="dead", pid=2**22 + 1)
    registry.announce(living)
    registry.announce(dead)
    heard = []
    monkeypatch.setattr(
        reaper, "restore_messages",
        lambda app, keys, node, lost: heard.append((node, [n.id for n in registry.alive()])) or 1,
    )  # fmt: skip
    assert reaper.Reaper(None, registry, KEYS).reap() == 1
    assert heard == [("dead", [living.id])]
    assert [node for node, _ in registry.registered()] == [living]


def test_a_silent_node_loses_its_messages_and_keeps_its_leases(redis_url, monkeypatch):
    """It may be frozen or cut off, with calls open: nothing but proof of death frees their leases."""
    registry = Registry(connect(redis_url), KEYS)
    silent = Node.for_this_process("w@h", limit=1, slots=1)
    registry.announce(silent)
    registry.silence(silent)
    registry._redis.hset(KEYS.holders, f"{silent.id}/1", orjson.dumps({"node": silent.id}))
    monkeypatch.setattr(reaper, "restore_messages", lambda app, keys, node, lost: 3)
    assert reaper.Reaper(None, registry, KEYS).reap() == 1
    assert registry._redis.hkeys(KEYS.holders) == [f"{silent.id}/1"]
    assert registry.registered() == []


def test_nobody_buries_itself(redis_url, monkeypatch):
    """Whoever can reap lives, though its beacon is silent, and whatever its host says of its process."""
    registry = Registry(connect(redis_url), KEYS)
    own = replace(Node.for_this_process("w@h", limit=1, slots=1), started=1)
    registry.announce(own)
    monkeypatch.setattr(reaper, "restore_messages", lambda app, keys, node: 3)
    assert own.proven_dead()
    assert reaper.Reaper(None, registry, KEYS, own_id=own.id).reap() == 0
    registry.silence(own)
    assert reaper.Reaper(None, registry, KEYS, own_id=own.id).reap() == 0
    assert [node for node, _ in registry.registered()] == [own]


def test_each_message_of_a_dead_node_goes_back_once(redis_url):
    """Two heirs at it together; what the node still works on, as one that has reconnected, stays where it is."""
    broker = redis_url.replace("unix://", "redis+socket://", 1).replace("?db=", "?virtual_host=")
    app = Celery(broker=broker)
    queue = Queue("q", Exchange("dicast", type="direct"), routing_key="q")
    with app.connection_for_write(transport_options=reaper.own_unacked(KEYS, "dead")) as connection:
        channel = connection.default_channel
        queue(channel).declare()
        producer = connection.Producer(channel)
        for n in range(50):
            producer.publish({"n": n}, exchange=queue.exchange, routing_key="q")
        taken = [queue(channel).get() for _ in range(50)]
        channel.do_restore = False
    client = redis.Redis.from_url(redis_url)
    assert client.hlen(KEYS.unacked("dead")) == 50
    with ThreadPoolExecutor(2) as heirs:
        keep = frozenset([taken[0].delivery_tag])
        counts = list(heirs.map(lambda _: reaper.restore_messages(app, KEYS, "dead", keep=keep), range(2)))
    assert sum(counts) == 49
    back = [json.loads(text) for text in client.lrange("q", 0, -1)]
    assert {m["properties"]["delivery_tag"] for m in back} == {m.delivery_tag for m in taken[1:]}
    assert len(back) == 49
    assert all(m["properties"]["delivery_info"]["redelivered"] for m in back)
    assert client.hlen(KEYS.unacked("dead")) == client.zcard(f"{KEYS.unacked('dead')}:index") == 1


def test_a_message_tells_how_many_workers_were_lost_with_it_and_one_that_is_none_stops_no_heir(redis_url):
    broker = redis_url.replace("unix://", "redis+socket://", 1).replace("?db=", "?virtual_host=")
    app = Celery(broker=broker)
    queue = Queue("q", Exchange("dicast", type="direct"), routing_key="q")
    with app.connection_for_write(transport_options=reaper.own_unacked(KEYS, "dead")) as connection:
        channel = connection.default_channel
        queue(channel).declare()
        connection.Producer(channel).publish({"n": 1}, exchange=queue.exchange, routing_key="q", headers={"id": "a"})
        client = connect(redis_url)
        for times in (1, 2):
            assert queue(channel).get() is not None
            channel.qos._delivered.clear()
            client.hset(f"{KEYS.unacked('dead')}", "odd", '[{"headers": {"__type__": "uuid"}}, 1]')
            assert reaper.restore_messages(app, KEYS, "dead", lost=True) == 1
            assert client.hgetall(KEYS.unacked("dead")) == {}
            assert json.loads(client.lindex("q", 0))["headers"][RETURNS] == times
        assert queue(channel).get() is not None
        channel.qos._delivered.clear()
        assert reaper.restore_messages(app, KEYS, "dead") == 1  # of a node that lives, and has connected anew
        assert json.loads(client.lindex("q", 0))["headers"][RETURNS] == 2
        channel.do_restore = False
    app.close()
