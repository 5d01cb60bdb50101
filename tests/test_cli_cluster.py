"""`dicast cluster` on a real store, with a node that obeys."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dicast.app.access.keys import AccessKeys
from dicast.app.application import create_app
from dicast.app.cluster.view import NodeStatus
from dicast.workers.nodes.beacon import Beacon, IdleDuties
from dicast.workers.nodes.registry import Node, Order, OrderKind, Orders, Vitals
from dicast.workers.policy.rules import RulesStatus
from tests.command import Dicast, refused
from tests.e2e.cluster import until

WIDTH = RulesStatus(9, 8, 0.25, 90.0, "fixed", 12, 110.0)


class Willing(IdleDuties):
    """A node that does at once what it is told."""

    def __init__(self) -> None:
        self.cut = 0

    def vitals(self) -> Vitals:
        return Vitals(available=3, cut=self.cut)

    def served(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return ("sim",), ("provider.sim",)

    def obey(self, order: Order | None) -> bool:
        self.cut = 2 if order is not None and order.deadline_s == 1 else 0
        return True


@pytest.fixture
def node(environ: dict[str, str]) -> Iterator[Node]:
    app, duties = create_app({**environ, "DICAST_HEARTBEAT_INTERVAL": "0.05"}), Willing()
    facts: dict[str, Any] = {"labels": {"region": "eu"}, "missing_keys": ("far",), "version": "1"}
    node = Node.for_this_process("w@test", limit=5, slots=9, **facts)
    app.node = node
    beacon = Beacon(app.registry_maker(), node, lambda: WIDTH, lambda: duties)
    beacon.start()
    until(lambda: app.registry.facts(node.id), "it is heard")
    yield node
    beacon.stop()
    app.close()


def test_nodes_are_listed(at_once: Dicast, node: Node) -> None:
    shown = " ".join(at_once("cluster", "nodes", COLUMNS="200").stdout.split())
    assert shown.startswith("node status open free pools labels heard reason")
    assert f"{node.id} online 0 of 8 3 sim region=eu 0 s ago no key for far" in shown
    [found] = json.loads(at_once("cluster", "nodes", "--json").stdout)
    assert (found["id"], found["generation"], found["available"], found["version"]) == (node.id, 1, 3, "1")
    assert json.loads(at_once("cluster", "nodes", "--status", "offline", "--json").stdout) == []
    assert "no node is known" in at_once("cluster", "nodes", "--status", "offline").stdout


def test_the_installation_in_numbers(at_once: Dicast, node: Node) -> None:
    status = json.loads(at_once("cluster", "status", "--json").stdout)
    assert (status["by_status"]["online"], status["capacity"], status["available"], status["open"]) == (1, 8, 3, 0)
    assert (status["installation"], status["waiting"], status["unsatisfied"]) == ("dicast", {}, [])
    shown = at_once("cluster", "status").stdout
    assert "dicast: 1 online" in shown
    assert "calls: 0 open of 8, 3 slots free" in shown
    assert "waiting: nothing" in shown


def test_orders_are_given_and_told(at_once: Dicast, node: Node) -> None:
    run = at_once("cluster", "cordon", "w")
    assert (run.returncode, run.stderr.startswith(f"{node.id} is cordoned: cordon by ")) == (0, True)
    assert json.loads(at_once("cluster", "uncordon", "w@test", "--json").stdout)["status"] == "online"
    assert "is cordoned: drain by " in at_once("cluster", "drain", node.id).stderr
    run = at_once("cluster", "drain", node.id, "--deadline", "1")
    assert (run.returncode, "drained, 2 calls cut at the deadline" in run.stderr) == (1, True)
    assert "0 units went back" in at_once("cluster", "steal").stderr
    assert json.loads(at_once("cluster", "steal", "--json").stdout) == {"moves": [], "total": 0}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cordon", "nobody"), "no node has the id or name 'nobody'; dicast cluster nodes lists them"),
        (("drain", "w", "--deadline", "-1"), "deadline_s must be from 0 to 86400, got -1"),
    ],
)
def test_what_cannot_be_done_is_refused(at_once: Dicast, node: Node, arguments: tuple[str, ...], said: str) -> None:
    assert said in refused(at_once("cluster", *arguments))


def test_a_busy_node_is_not_removed_and_one_that_is_takes_no_order(
    at_once: Dicast, node: Node, environ: dict[str, str]
) -> None:
    app = create_app(environ)
    app.store.hset(app.keys.holders, "l", json.dumps({
        "node": node.id, "pool": "sim", "job": "j", "project": "p", "sent_ms": 1, "probe": False,
    }))  # fmt: skip
    assert f"node {node.id} has 1 call open: drain it first, or force it" in refused(at_once("cluster", "remove", "w"))
    Orders(app.store, app.keys).give(node.id, OrderKind.REMOVE, by="test")
    assert "is being removed" in refused(at_once("cluster", "uncordon", "w"))
    app.store.delete(app.keys.holders)
    app.close()


def test_two_of_one_name_are_told_apart_by_their_ids(at_once: Dicast, node: Node, environ: dict[str, str]) -> None:
    app = create_app(environ)
    other = Node.for_this_process("w@test", limit=5, slots=9)
    app.registry.announce(other, WIDTH)
    first, second = sorted((node.id, other.id))
    assert f"2 nodes are called w; name one by its id: {first}, {second}" in refused(at_once("cluster", "cordon", "w"))
    assert at_once("cluster", "cordon", node.id).returncode == 0
    app.close()


def test_watching_tells_again_and_again(environ: dict[str, str], tmp_path: Path, node: Node) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "dicast.app.cli.main", "cluster", "nodes", "--watch", "--json"],
        cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        looks = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
        assert process.stderr.read() == ""
    assert [look[0]["id"] for look in looks] == [node.id] * 2


@pytest.mark.parametrize("all_at_once", [False, True])
def test_a_revoked_node_is_told_as_revoked_and_not_as_silent(environ: dict[str, str], *, all_at_once: bool) -> None:
    """Whoever looks for what is wrong with it finds that somebody wanted it so. The other node has not joined by a
    token, so that revoking all is nothing to it."""
    app = create_app({**environ, "DICAST_TOKEN_SECRET": "a secret of the tests, of 32 bytes or more"})
    nodes = [Node.for_this_process(f"{name}@h", limit=2, slots=2) for name in ("revoked", "silent")]
    for node in nodes:
        app.registry.announce(node, WIDTH)
    if all_at_once:
        app.store.hset(
            AccessKeys(app.settings.namespace).store_users, nodes[0].id, '{"user":"u","digest":"d","until":9e9}'
        )
        assert app.membership.revoke_all() == 1
    else:
        app.membership.expel(nodes[0].id)
    assert app.cluster.node("revoked").status is NodeStatus.ONLINE, "until it is not heard any more"
    for node in nodes:
        app.registry.silence(node)
    assert [app.cluster.node(node.id).reason for node in nodes] == ["its token was revoked", "it fell silent"]
    for node in nodes:
        app.registry.forget(node)
    assert [app.cluster.node(node.id).reason for node in nodes] == ["its token was revoked", "it fell silent"]
    app.close()
