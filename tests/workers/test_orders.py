"""What operators want of nodes: given once, taken back, and obeyed before it is acknowledged."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import orjson
import pytest

from dicast.workers.nodes.beacon import Beacon, IdleDuties
from dicast.workers.nodes.registry import GiveBack, Node, Order, OrderKind, Orders, Registry, Requests
from dicast.workers.policy.rules import RulesStatus
from dicast.workers.store.connection import connect
from dicast.workers.store.keys import Keys
from tests.e2e.cluster import until

KEYS = Keys("test")


@pytest.fixture
def store(redis_url):
    with connect(redis_url) as client:
        client.hset(KEYS.nodes, "n", "{}")
        yield client


def test_the_same_order_twice_is_one(store):
    orders = Orders(store, KEYS)
    first, _ = orders.give("n", OrderKind.DRAIN, by="ann", deadline_s=60)
    again, _ = orders.give("n", OrderKind.DRAIN, by="bob", deadline_s=60)
    assert again == first == orders.standing("n")
    assert orders.give("n", OrderKind.CORDON, by="bob")[0] == first, "a drained node is cordoned already"
    sooner, _ = orders.give("n", OrderKind.DRAIN, by="bob", deadline_s=5)
    assert (sooner.deadline_s, sooner.by) == (5, "bob")
    orders.take_back("n")
    orders.take_back("n")
    assert orders.standing("n") is None
    assert orders.give("n", OrderKind.DRAIN, by="bob", deadline_s=5)[0].id != sooner.id


def test_a_node_that_nobody_knows_is_given_none(store):
    order, leases = Orders(store, KEYS).give("nobody", OrderKind.CORDON, by="ann")
    assert (order.id, leases, store.exists(KEYS.orders)) == ("", -1, 0)


def test_many_at_once_give_one_order(store):
    with ThreadPoolExecutor(8) as people:
        given = list(people.map(lambda _: Orders(store, KEYS).give("n", OrderKind.CORDON, by="x")[0].id, range(50)))
    assert len(set(given)) == 1


def test_a_removal_is_final_and_leaves_busy_nodes_alone(store):
    orders = Orders(store, KEYS)
    for lease, node in (("n/1", "n"), ("n/2", "n"), ("m/1", "m")):
        store.hset(KEYS.holders, lease, orjson.dumps({"node": node}))
    order, leases = orders.give("n", OrderKind.REMOVE, by="ann", busy=False)
    assert (order.id, leases, orders.standing("n")) == ("", 2, None)
    forced, leases = orders.give("n", OrderKind.REMOVE, by="ann")
    assert (leases, orders.standing("n")) == (2, forced)
    assert orders.give("n", OrderKind.CORDON, by="bob")[0] == forced
    orders.take_back("n")
    assert orders.standing("n") == forced


@pytest.mark.parametrize("text", [None, "", "text", '{"id": "1", "kind": "dance"}', "[]"])
def test_what_is_no_order_is_none(text):
    assert Order.read(text) is None
    assert GiveBack.read(text or "") is None


class Obedient(IdleDuties):
    """Carries an order out when it may."""

    def __init__(self):
        self.may, self.orders = threading.Event(), []

    def obey(self, order):
        if not self.orders or self.orders[-1] != order:
            self.orders.append(order)
        return order is None or self.may.is_set()


def test_an_order_is_acknowledged_when_it_is_carried_out_and_not_before(redis_url, store):
    duties, node = Obedient(), Node.for_this_process("w@h", limit=1, slots=1)
    beacon = Beacon(
        lambda: Registry(connect(redis_url), KEYS), node, lambda: RulesStatus(1, 1, 0.0, 0.0, "fixed", 0),
        lambda: duties,
    )  # fmt: skip
    orders, registry = Orders(store, KEYS), Registry(store, KEYS)
    beacon.start()
    try:
        until(lambda: registry.facts(node.id), "it is heard")
        order, _ = orders.give(node.id, OrderKind.CORDON, by="ann")
        beacon.wake()
        until(lambda: order in duties.orders, "it has read it")
        assert registry.facts(node.id).order_seen == ""
        duties.may.set()
        until(lambda: registry.facts(node.id).order_seen == order.id, "it has acknowledged it")
        orders.take_back(node.id)
        beacon.wake()
        until(lambda: registry.facts(node.id).order_seen == "", "and that it is taken back")
        assert duties.orders == [None, order, None]
    finally:
        beacon.stop()


def test_only_those_that_answer_in_time_have_given_back(redis_url, store):
    """Two are asked, one hears it."""
    ear = store.pubsub(ignore_subscribe_messages=True)
    ear.subscribe(KEYS.notices)
    ear.get_message(timeout=1)
    with ThreadPoolExecutor(1) as people:
        asked = people.submit(Requests(connect(redis_url), KEYS).give_back, {"a": {"p": 3}, "b": {"p": 2}}, wait_s=0.5)
        request = GiveBack.read(until(lambda: (m := ear.get_message(timeout=1)) and m["data"], "it is asked"))
        assert (request.node, request.units) == ("a", {"p": 3})
        store.rpush(KEYS.given_back(request.id), orjson.dumps(["a", {"p": 1}]))
        assert asked.result() == {"a": {"p": 1}}
    ear.close()
