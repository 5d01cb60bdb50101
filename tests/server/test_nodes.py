"""Nodes over HTTP: they join, are heard, are renewed, and are put out; and operators steer them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest
import redis

from dicast.app.access.scopes import Scope
from dicast.app.application import Dicast
from dicast.app.server import events, interface
from dicast.app.server.routes import nodes
from dicast.workers.nodes.registry import Node
from tests.server.serving import client, installation, problem, served
from tests.server.test_events import told


@pytest.fixture
def joiner(dicast: Dicast, address: str) -> Iterator[httpx2.Client]:
    with client(address, dicast.tokens.issue("fleet", [Scope.NODE_REGISTER], ttl_s=600)) as made:
        yield made


def store_of(joined: dict[str, object], module_url: str) -> redis.Redis:
    """The store as the node reaches it; over the test's socket."""
    login = joined["credentials"]
    return redis.Redis.from_url(module_url, username=login["user"], password=login["password"], decode_responses=True)


def test_a_node_joins_is_heard_and_takes_its_leave(
    joiner: httpx2.Client, address: str, dicast: Dicast, module_url: str, token: str
) -> None:
    joined = joiner.post("/cluster/nodes", json={"name": "w1@here"})
    assert joined.status_code == 201
    found = joined.json()
    node, at = found["node"], f"/cluster/nodes/{quote(found['node'], safe='')}"
    assert node.startswith("w1@here#") and found["store_url"] == found["credentials"]["url"]
    with store_of(found, module_url) as store:
        store.set(dicast.keys.at("probe"), 1)
        with pytest.raises(redis.exceptions.NoPermissionError):
            store.flushall()
        with client(address, found["heartbeat_token"]) as heart:
            assert heart.post(f"{at}/heartbeat").json() == {
                "node": node, "heartbeat_s": nodes.HEARTBEAT_S, "heartbeat_token": None, "expires_in_s": None,
            }  # fmt: skip
            problem(heart.post("/cluster/nodes/other/heartbeat"), 403, "token-refused")
            problem(heart.get("/cluster/nodes"), 403, "token-refused")
            assert heart.delete(at).status_code == 204
            problem(heart.post(f"{at}/heartbeat"), 401, "token-refused")
        with pytest.raises((redis.exceptions.ConnectionError, redis.exceptions.AuthenticationError)):
            store.get(dicast.keys.at("probe"))
    assert [line.action for line in dicast.audit.lines() if line.outcome == "done"] == ["node.join", "node.leave"]
    assert found["heartbeat_token"] not in json.dumps([line.details for line in dicast.audit.lines()])


def test_an_operator_puts_a_node_out(
    joiner: httpx2.Client, http: httpx2.Client, address: str, dicast: Dicast, module_url: str
) -> None:
    found = joiner.post("/cluster/nodes", json={"name": "w1@here"}).json()
    at = f"/cluster/nodes/{quote(found['node'], safe='')}"
    with store_of(found, module_url) as store, client(address, found["heartbeat_token"]) as heart:
        store.ping()
        assert http.delete(at).status_code == 204
        problem(heart.post(f"{at}/heartbeat"), 401, "token-refused")
        with pytest.raises((redis.exceptions.ConnectionError, redis.exceptions.AuthenticationError)):
            store.ping()
        problem(http.delete(at), 404, "unknown-node")


def test_a_token_is_renewed_in_time_and_a_forgotten_node_joins_again(
    joiner: httpx2.Client, address: str, dicast: Dicast
) -> None:
    found = joiner.post("/cluster/nodes", json={"name": "w1@here"}).json()
    at = f"/cluster/nodes/{quote(found['node'], safe='')}/heartbeat"
    dicast.membership._ttl_s *= 3  # what is left of the token is little now
    with client(address, found["heartbeat_token"]) as heart:
        renewed = heart.post(at).json()
        assert renewed["heartbeat_token"] and renewed["expires_in_s"] > 3600
        dicast.membership._ttl_s /= 3
        dicast.store_users.delete(found["node"])
        problem(heart.post(at), 404, "unknown-node")
    with client(address, renewed["heartbeat_token"]) as heart:
        problem(heart.post(at), 404, "unknown-node")
    same = {"name": "w1@here", "node": found["node"], "heartbeat_token": renewed["heartbeat_token"]}
    again = joiner.post("/cluster/nodes", json=same).json()
    assert again["node"] == found["node"]
    other = joiner.post("/cluster/nodes", json={**same, "heartbeat_token": "forged"}).json()
    assert other["node"] != found["node"]


@pytest.mark.parametrize(
    "body",
    [{}, [], {"name": ""}, {"name": "a b"}, {"name": "w", "url": "http://evil"}, {"name": "w" * 121}, {"name": "w#1"}],
)
def test_what_is_no_node_joins_nothing(joiner: httpx2.Client, dicast: Dicast, body: object) -> None:
    assert joiner.post("/cluster/nodes", json=body).status_code == 422
    assert dicast.store_users.nodes() == {}


def test_nodes_are_seen_and_steered(http: httpx2.Client, dicast: Dicast) -> None:
    node = Node.for_this_process("w1@here", limit=5, slots=5)
    dicast.registry.announce(node)
    dicast.cluster._wait_s = 0.0  # nobody is there to acknowledge
    at = f"/cluster/nodes/{quote(node.id, safe='')}"
    assert [found["id"] for found in http.get("/cluster/nodes").json()] == [node.id]
    assert http.get("/cluster/nodes?status=offline").json() == []
    assert http.get(at).json()["name"] == http.get("/cluster/nodes/w1").json()["name"] == "w1@here"
    told = http.post(f"{at}/cordon").json()
    assert told["status"] == "cordoned" and "cordon by tester" in told["reason"]
    assert http.post(f"{at}/drain", json={"deadline_s": 3}).json()["id"] == node.id
    assert http.post(f"{at}/drain").status_code == 200
    assert http.post(f"{at}/uncordon").json()["status"] == "online"
    assert http.post("/cluster/steal").json() == {"moves": [], "total": 0}
    assert http.post("/cluster/steal", json={"queue_depths": {node.id: 9}}).json()["total"] == 0
    status = http.get("/cluster/status").json()
    assert (status["installation"], status["by_status"]["online"]) == ("dicast", 1)
    for wrong in ({"deadline_s": -1}, {"deadline_s": 1e9}, {"deadline_s": "3"}, {"deadline": 3}):
        problem(http.post(f"{at}/drain", json=wrong), 422, "request-refused")
    for wrong in ({"queue_depths": {"a": -1}}, {"queue_depths": {"a": "1"}}, {"depths": {}}):
        problem(http.post("/cluster/steal", json=wrong), 422, "request-refused")
    problem(http.get("/cluster/nodes?status=well"), 422, "request-refused")
    for verb in ("cordon", "uncordon", "drain"):
        problem(http.post(f"/cluster/nodes/nobody/{verb}"), 404, "unknown-node")
    said = [line.action for line in dicast.audit.lines() if line.actor == "tester" and line.outcome != "refused"]
    assert said[:4] == ["node.cordon", "node.drain", "node.drain", "node.uncordon"]


def test_nodes_that_come_and_go_are_events(
    http: httpx2.Client, dicast: Dicast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "LOOK_EVERY_S", 0.02)
    with http.stream("GET", "/cluster/events") as reply:
        found = told(reply.iter_lines())
        first = next(found)
        assert (first["event"], json.loads(first["data"])) == ("nodes", [])
        dicast.registry.announce(Node.for_this_process("w1@here", limit=5, slots=5))
        second = next(found)
        assert [node["name"] for node in json.loads(second["data"])] == ["w1@here"]
        dicast.registry.announce(Node.for_this_process("w2@here", limit=5, slots=5))
        assert len(json.loads(next(found)["data"])) == 2
    with http.stream("GET", "/cluster/events", headers={"Last-Event-ID": first["id"]}) as reply:
        assert len(json.loads(next(told(reply.iter_lines()))["data"])) == 2


def test_the_server_keeps_the_stores_users(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a fail-over, which forgets them."""
    monkeypatch.setattr(interface, "USERS_EVERY_S", 0.05)
    dicast = installation(tmp_path, redis_url)
    claims = dicast.tokens.verify(dicast.tokens.issue("fleet", [Scope.NODE_REGISTER], ttl_s=600), None)
    user = dicast.membership.join(claims, "w1@here").store.user
    with interface.users_kept(dicast):
        dicast.store.acl_deluser(user)
        end = time.monotonic() + 10
        while user not in dicast.store.acl_users():
            assert time.monotonic() < end, "the user is not there again"
            time.sleep(0.02)
    dicast.membership.expel(dicast.membership._users.nodes().popitem()[0])
    assert user not in dicast.store.acl_users()


def test_hundreds_join_at_once_with_one_token(tmp_path: Path, redis_url: str) -> None:
    """The usual rate of a token would let a hundred in."""
    dicast = installation(tmp_path, redis_url, DICAST_SERVER_RATE="600")
    token = dicast.tokens.issue("fleet", [Scope.NODE_REGISTER], ttl_s=600)
    with served(dicast) as address:
        statuses: list[int] = []

        def join(first: int) -> None:
            with client(address, token) as http:
                statuses.extend(
                    http.post("/cluster/nodes", json={"name": f"w{n}@here"}).status_code
                    for n in range(first, first + 25)
                )

        threads = [threading.Thread(target=join, args=(25 * n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert statuses == [201] * 200
        for node in dicast.store_users.nodes():
            dicast.membership.expel(node)
