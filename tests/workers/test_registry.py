"""Nodes are registered, given up, and come back; those that are gone stay listed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dicast.workers.nodes.registry import SILENT, Node, Registry, Vitals
from dicast.workers.policy.rules import RulesStatus
from dicast.workers.store.connection import connect
from dicast.workers.store.keys import Keys

KEYS = Keys("test")
WIDTH = RulesStatus(4, 3, 0.25, 10.0, "fixed", 8)


@pytest.fixture
def registry(redis_url):
    with connect(redis_url) as client:
        yield Registry(client, KEYS)


def a_node(name="w@h", **facts):
    return Node.for_this_process(name, limit=1, slots=4, version="1", **facts)


def the_one(registry):
    (seen,) = registry.sightings()
    return seen


def test_a_node_tells_what_it_is_and_what_it_does(registry):
    node = a_node(labels={"region": "eu"}, pools=("a", "b"), missing_keys=("c",), accelerators=("H100",))
    registry.announce(node, WIDTH, Vitals(open=2, available=1, held={"a": 5}, memory_used_bytes=7))
    seen = the_one(registry)
    assert seen.node == node
    assert (seen.width, seen.vitals) == (WIDTH, Vitals(2, 1, {"a": 5}, 7))
    assert seen.heard_s_ago < 5
    assert seen.generation == 1
    assert abs(seen.registered_at - registry._redis.time()[0]) < 5
    assert registry.statuses() == [(node, WIDTH)]


def test_each_registration_is_a_generation_and_a_heartbeat_is_none(registry):
    one, two = a_node(), a_node()
    for _ in range(3):
        registry.announce(one)
        registry.announce(two)
    before = {seen.node.id: (seen.generation, seen.registered_at) for seen in registry.sightings()}
    assert sorted(generation for generation, _ in before.values()) == [1, 2]
    registry.silence(one)
    registry.forget(one)
    gone = next(seen for seen in registry.sightings() if seen.node == one)
    assert (gone.heard_s_ago, gone.lost_reason, gone.generation) == (None, SILENT, before[one.id][0])
    assert gone.registered_at == before[one.id][1]
    registry.announce(one)
    back = {seen.node.id: seen.generation for seen in registry.sightings()}
    assert back == {one.id: 3, two.id: before[two.id][0]}


def test_the_dead_stay_listed_and_who_left_does_not(registry):
    dead, left = a_node("dead@h"), a_node("left@h")
    for node in (dead, left):
        registry.announce(node)
    registry.deregister(dead)
    registry.leave(left)
    assert [(seen.node, seen.heard_s_ago) for seen in registry.sightings()] == [(dead, None)]
    assert registry.registered() == []


def test_those_that_are_gone_are_listed_for_a_day_and_not_without_bound(registry):
    for number in range(510):
        node = replace(a_node(), id=f"n{number:03}")
        registry.announce(node)
        registry.deregister(node)
    living = a_node()
    registry.announce(living)
    registry.announce(living)
    assert registry._redis.zcard(KEYS.nodes_gone) == registry._redis.hlen(KEYS.gone_facts) == 500
    for id_ in registry._redis.zrange(KEYS.nodes_gone, 0, -1):
        registry._redis.zincrby(KEYS.nodes_gone, -86_400_001, id_)
    for _ in range(5):
        registry.announce(living)
    assert [seen.node for seen in registry.sightings()] == [living]
    assert registry._redis.hlen(KEYS.gone_facts) == 0


def test_after_a_restart_of_the_store_a_node_is_offline_until_it_is_heard(registry):
    node = a_node()
    registry.announce(node)
    registry._redis.hset(KEYS.nodes_registered, node.id, "1|1700000000000|anotherrun")
    assert "started again" in the_one(registry).lost_reason
    registry.announce(node)
    assert the_one(registry).heard_s_ago is not None


def test_a_beacon_of_another_version_is_read(registry):
    node = a_node()
    registry.announce(node, WIDTH)
    registry._redis.set(KEYS.node(node.id), '{"open": 3, "mood": "good"}', keepttl=True)
    seen = the_one(registry)
    assert (seen.width, seen.vitals) == (None, Vitals(open=3))
