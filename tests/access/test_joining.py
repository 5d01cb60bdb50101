"""A worker that joins over HTTP: a real server of its routes, a real store with users, real worker processes."""

from __future__ import annotations

import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dicast.app.access.membership import Membership
from dicast.app.access.scopes import Scope
from dicast.app.access.store_users import StoreBroker, StoreUsers
from dicast.app.access.tokens import Tokens
from dicast.app.application import create_app
from dicast.app.cluster.joining import (
    JOINED_FILE,
    Member,
    NodeRejected,
    NodeUnknown,
    NotJoined,
    ServerAway,
    ServerClient,
)
from dicast.config.settings import SettingsError
from dicast.workers.store.connection import connect, rejects_login
from tests.access.conftest import SECRET, secrets_of
from tests.access.join_server import JoinServer
from tests.access.servers import certificate, store_server
from tests.e2e.cluster import ROOT, Cluster, Simulated, a_job, until
from tests.e2e.conftest import POOL
from tests.server.serving import client, served

HEARTBEAT = Scope.NODE_HEARTBEAT


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with store_server(tmp_path_factory.mktemp("store")) as url:
        yield url


@pytest.fixture
def admin(store):
    with connect(store) as client:
        client.flushall()
        yield client


@pytest.fixture
def server(admin, store, clock):
    tokens = Tokens(admin, "dicast", secrets_of(SECRET), clock)
    users = StoreUsers(admin, "dicast", store, secrets_of(SECRET), StoreBroker(), clock)
    server = JoinServer(tokens, Membership(tokens, users))
    yield server
    server.stop()


class Host:
    """A worker's monotonic clock."""

    def __init__(self):
        self.s = 50.0

    def __call__(self):
        return self.s


@pytest.fixture
def host():
    return Host()


def client_of(server, host, token=None):
    return ServerClient(server.url, token or server.tokens.issue("gpus", [Scope.NODE_REGISTER], ttl_s=86_400), now=host)


def member_of(server, host, **more):
    return Member(client_of(server, host), "gpu-1", now=host, **more)


def test_it_is_registered_heard_and_gone(server, host):
    member = member_of(server, host)
    assert server.known == {member.registration.node} and member.beat() == 0.1
    assert not rejects_login(member.registration.store_url)
    member.leave()
    member.leave()  # once more does nothing
    assert server.known == set() and rejects_login(member.registration.store_url)
    assert server.answers == [("POST", 201), ("POST", 200), ("DELETE", 200)]
    password = member.registration.store_url.partition(":")[2].partition("@")[0].rpartition(":")[2]
    assert password in member.registration.secrets() and password not in repr(member.registration)


def test_its_token_is_renewed_before_it_ends(server, host, clock):
    member = member_of(server, host)
    for _ in range(12):
        clock.s += 1300
        host.s += 1300
        member.beat()
    assert len(server.shown) == 12 and {status for _, status in server.answers} == {200, 201}
    assert not rejects_login(member.registration.store_url)
    member.leave()


def test_a_host_whose_clock_is_wrong_is_renewed_all_the_same(server, host, clock):
    """Only the store's clock is asked for dates."""
    member = member_of(server, host)
    for skew in (+60, -60, +86_400):
        host.s += skew
        clock.s += 1300
        member.beat()
    member.leave()


def test_a_server_that_has_forgotten_it_gets_it_back_as_itself(server, host):
    member = member_of(server, host)
    before = member.registration
    server.known.clear()
    member.beat()
    assert (member.registration.node, member.registration.store_url) == (before.node, before.store_url)
    assert server.known == {before.node}
    member.beat()
    member.leave()


def test_one_that_is_revoked_is_told_and_does_not_come_back(server, host):
    """Though what it has joined with would let another node in."""
    ended = []
    member = member_of(server, host, end=ended.append, is_shut=rejects_login)
    server.heartbeat_s = 60
    member.start()
    until(lambda: len(server.answers) > 1, "it is heard")
    server.membership.expel(member.registration.node)
    until(lambda: ended, "it knows", deadline_s=5)
    assert "refuses this node: the tokens of this generation are all ended" in ended[0]
    count = len(server.answers)
    member.leave()
    assert len(server.answers) == count and ended == ended[:1] and server.answers[-1] == ("POST", 401)


def test_long_heartbeats_do_not_hide_that_it_is_shut_out(server, host):
    ended = []
    server.heartbeat_s = 3600
    member = Member(client_of(server, time.monotonic), "gpu-1", end=ended.append, is_shut=rejects_login)
    member.start()
    server.membership.expel(member.registration.node)
    until(lambda: ended, "it knows", deadline_s=5)
    member.leave()


def test_one_whose_token_ran_out_while_it_was_away_starts_anew(server, host, clock):
    member = member_of(server, host)
    clock.s += 8000
    host.s += 8000
    with pytest.raises(NodeRejected, match="has named it gpu-1#"):
        member.beat()


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
def test_a_server_that_cannot_now_is_away(server, host, status):
    member = member_of(server, host)
    server.broken = status
    with pytest.raises(ServerAway, match=str(status)):
        member.beat()
    server.broken = 0
    member.beat()
    member.leave()


@pytest.mark.parametrize(
    ("status", "error"), [(401, NodeRejected), (403, NodeRejected), (422, NodeRejected), (404, NodeUnknown)]
)
def test_what_a_refusal_means(server, host, status, error):
    client = client_of(server, host)
    server.broken = status
    with pytest.raises(error):
        client.register("gpu-1")


def test_a_server_that_is_not_there_is_away(server, host):
    client = client_of(server, host)
    client._url = "http://127.0.0.1:1"
    with pytest.raises(ServerAway, match="does not answer"):
        client.register("gpu-1")


def test_a_token_for_something_else_lets_nobody_in(server, host):
    client = client_of(server, host, server.tokens.issue("me", [Scope.JOB_READ], ttl_s=60))
    with pytest.raises(NodeRejected, match="the token is not for this"):
        client.register("gpu-1")


def test_a_server_is_known_by_its_certificate(server, host, tmp_path):
    pem, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    server.encrypt(context)
    with pytest.raises(ServerAway, match="does not answer: ConnectError"):
        client_of(server, host).register("gpu-1")
    token = server.tokens.issue("gpus", [Scope.NODE_REGISTER], ttl_s=60)
    client = ServerClient(server.url, token, ca_file=str(pem))
    assert client.register("gpu-1").node in server.known
    client.close()


def test_settings_that_join(monkeypatch, tmp_path):
    given = {"DICAST_SERVER_URL": "http://127.0.0.1:1", "DICAST_NODE_TOKEN": "t"}
    monkeypatch.chdir(tmp_path)
    app = create_app(given)
    with pytest.raises(NotJoined, match="none has joined from here"):
        app.store  # noqa: B018
    with_rabbit = create_app({**given, "DICAST_BROKER_URL": "amqp://u:p@h//"})
    assert with_rabbit.conf.broker_url == "amqp://u:p@h//"
    assert ".invalid" in app.conf.broker_url  # no network for options and --help
    assert create_app({**given, "REDIS_URL": "redis://h/0"}).store_url == "redis://h/0"
    for name, value in given.items():
        with pytest.raises(SettingsError, match="must be set together"):
            create_app({name: value})


@pytest.fixture
def installation(admin, store, tmp_path):
    running = []

    def start(*provider, ttl_s=3600.0, **more):
        simulated = Simulated(*provider)
        running.append(simulated)
        cluster = Cluster(tmp_path, store, POOL.format(url=simulated.base_url), DICAST_TOKEN_SECRET=SECRET, **more)
        running.append(cluster)
        cluster.provider = simulated
        cluster.server = JoinServer(cluster.app.tokens, Membership(cluster.app.tokens, cluster.app.store_users, ttl_s))
        running.append(cluster.server)
        return cluster

    yield start
    for part in reversed(running):
        part.stop()


def joins(cluster):
    token = cluster.app.tokens.issue("gpus", [Scope.NODE_REGISTER], ttl_s=3600)
    return {"REDIS_URL": "", "DICAST_TOKEN_SECRET": "", "DICAST_SERVER_URL": cluster.server.url,
            "DICAST_NODE_TOKEN": token}  # fmt: skip


@pytest.mark.slow
def test_a_worker_joins_goes_on_without_the_server_and_leaves(installation, admin):
    cluster = installation("--latency", "0.05", ttl_s=4.0)
    server = cluster.server
    worker = cluster.worker(**joins(cluster))
    (node,) = server.known
    assert [each.id for each in cluster.app.registry.alive()] == [node]
    job = cluster.submit(a_job(items=4))
    until(lambda: cluster.done(job) > 5, "some are done")
    server.broken = 503
    done = cluster.done(job)
    until(lambda: cluster.done(job) > done + 20, "it goes on")
    server.known.clear()
    server.broken = 0
    until(lambda: server.known == {node}, "it has registered again as itself")
    until(lambda: len(server.shown) > 4, "its token is renewed again and again")
    cluster.app.store_users.reconcile()
    assert cluster.report(job)["status"] == "completed"
    third = cluster.submit(a_job(items=3))
    until(lambda: cluster.done(third) > 3, "some are done")
    admin.acl_deluser(cluster.app.store_users.name(node))  # as a new master knows none
    until(lambda: "invalid username-password" in worker.log.read_text(), "it is shut out")
    assert cluster.app.store_users.reconcile() == (1, 0)
    assert cluster.report(third)["status"] == "completed"
    second = cluster.submit(a_job(items=20))
    until(lambda: cluster.done(second) > 3, "some are done")
    assert worker.stop() == 0  # with calls open
    assert server.answers[-1] == ("DELETE", 200) and server.known == set()
    assert cluster.app.store_users.nodes() == {}
    assert {status for _, status in server.answers} <= {200, 201, 404, 503}
    assert cluster.app.registry.registered() == []
    log = worker.log.read_text()
    assert "the node goes on" in log and "is registered again" in log
    cluster.quiet()
    password = secrets_of(SECRET)[0].key(f"store user 0 {node}").hex()
    assert not any(secret in log for secret in (SECRET, password, *server.shown))


@pytest.mark.slow
def test_a_revoked_worker_is_cut_off_at_once_and_nothing_is_lost(installation, admin):
    cluster = installation("--latency", "0.3", MAX_CONCURRENT_LLM_CALLS="8")
    server = cluster.server
    revoked = cluster.worker(**joins(cluster))
    cluster.worker()
    (node,) = server.known
    user = cluster.app.store_users.name(node)
    job = cluster.submit(a_job(items=3))
    until(lambda: cluster.done(job) > 10, "some are done")
    until(
        lambda: any(lease.startswith(node) for lease in admin.zrange(cluster.app.keys.leases, 0, -1)), "calls are open"
    )
    began = time.monotonic()
    assert server.membership.expel(node) > 0
    assert [c for c in admin.client_list() if c["user"] == user] == []
    took = time.monotonic() - began
    assert revoked.process.wait(timeout=30) == 1
    assert took < 20 and time.monotonic() - began < 40
    assert [status for _, status in server.answers].count(401) == 1  # it does not ask again and again
    log = revoked.log.read_text()
    assert "worker_ends" in log and "the tokens of this generation are all ended" in log
    refused = sum(entry["count"] for entry in admin.acl_log() if entry["reason"] == "auth")
    assert refused < 400, "a storm of connections"
    report = cluster.report(job)
    assert report["status"] == "completed"
    opinions = cluster.opinions(job)
    assert len(opinions) == len({tuple(o[k] for k in ("item_id", "judge", "criterion_id")) for o in opinions}) == 90
    assert cluster.provider.stats()["calls"] <= 90 + 8


@pytest.mark.slow
def test_workers_join_the_real_server(admin, store, tmp_path):
    """One leaves, one is revoked by a command; both are seen over HTTP meanwhile."""
    provider = Simulated("--latency", "0.05")
    cluster = Cluster(
        tmp_path, store, POOL.format(url=provider.base_url), DICAST_TOKEN_SECRET=SECRET, DICAST_SERVER_STORE_URL=store
    )
    dicast = create_app(cluster.environ)
    try:
        with served(dicast) as address:
            issued = {
                scope: cluster.app.tokens.issue("me", [scope], ttl_s=600) for scope in Scope if scope != HEARTBEAT
            }
            settings = {
                "REDIS_URL": "", "DICAST_TOKEN_SECRET": "", "DICAST_SERVER_STORE_URL": "",
                "DICAST_SERVER_URL": address, "DICAST_NODE_TOKEN": issued[Scope.NODE_REGISTER],
            }  # fmt: skip
            first, second = cluster.worker(**settings), cluster.worker(**settings)
            with client(address, issued[Scope.JOB_READ]) as http:
                nodes = http.get("/cluster/nodes").json()
                assert {node["status"] for node in nodes} == {"online"} and len(nodes) == 2
                users = set(cluster.app.store_users.nodes())
                assert users == {node["id"] for node in nodes}
                left = Path(cluster.environ["DICAST_STATE_DIR"]) / JOINED_FILE
                assert left.stat().st_mode & 0o777 == 0o600
                health = subprocess.run(
                    [sys.executable, "-m", "dicast", "health"], env={**cluster.environ, **settings}, cwd=ROOT,
                    capture_output=True, text=True, check=False,
                )  # fmt: skip
                assert (health.returncode, health.stdout) == (0, "2 well\n"), health.stderr
                job = cluster.submit(a_job(items=1))
                assert cluster.report(job)["status"] == "completed"
                assert first.stop() == 0
                stays = {node["id"] for node in http.get("/cluster/nodes").json()}
                assert stays == set(cluster.app.store_users.nodes()) and len(stays) == 1
            id = cluster.app.tokens.verify(issued[Scope.NODE_REGISTER], None).id
            began = time.monotonic()
            cluster.app.membership.revoke(id)
            assert second.process.wait(timeout=30) == 1
            assert time.monotonic() - began < 30
            assert "refuses this node" in second.log.read_text()
            assert not left.exists()
        assert [(line.action, line.outcome) for line in cluster.app.audit.lines()] == [
            ("node.join", "done"), ("node.join", "done"), ("node.leave", "done"),
            ("POST /cluster/nodes/{node}/heartbeat", "refused"),
        ]  # fmt: skip
        assert cluster.app.audit.verify().whole
    finally:
        cluster.stop()
        provider.stop()
