"""A node's user: a worker does a whole job with it, and nothing else can be done with it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import kombu.transport.redis
import pytest
import redis
from celery.backends import redis as celery_redis
from redis.commands.core import CoreCommands

import dicast.app
import dicast.workers
from dicast.app.access.store_users import COMMANDS, StoreBroker, StoreUsers, StoreUsersUnavailable, literal, with_login
from dicast.workers.runtime.result_backend import CHORD_PART
from dicast.workers.store.connection import connect
from dicast.workers.store.keys import Keys
from tests.access.conftest import SECRET, secrets_of
from tests.access.servers import ADMIN, SERVERS, certificate, store_server
from tests.e2e.cluster import Cluster, Simulated, a_job, until
from tests.e2e.conftest import POOL
from tests.e2e.servers import Pair, free_ports

ROOTS = [Path(module.__path__[0]).resolve() for module in (dicast.app, dicast.workers)]
NOT_WORKERS = (
    "app/access/",
    "app/server/",
    "operator/doctor.py",
    "operator/store_checks.py",
    "app/cli/",
    "store/embedded.py",
)
"""What runs with the operator's own login."""
FAR = 4e9


@pytest.fixture(scope="module", params=SERVERS)
def server(request, tmp_path_factory):
    with store_server(tmp_path_factory.mktemp(request.param), request.param) as url:
        yield url


@pytest.fixture
def admin(server):
    with connect(server) as client:
        client.flushall()
        client.execute_command("ACL", "LOG", "RESET")
        for user in client.acl_users():
            if user != "default":
                client.acl_deluser(user)
        yield client


def users_of(admin, server, namespace="dicast", **more):
    return StoreUsers(admin, namespace, server, secrets_of(SECRET, namespace=namespace), StoreBroker(**more))


@pytest.mark.parametrize("text", [
    *(file.read_text() for root in ROOTS for file in root.rglob("*.lua") if not str(file).count("/access/")
      and not str(file).count("/server/")),
    CHORD_PART,
])  # fmt: skip
def test_every_command_of_a_workers_script_is_allowed(text):
    assert {name.lower() for name in re.findall(r"redis\.p?call\(\s*['\"](\w+)['\"]", text)} <= set(COMMANDS)


OTHER_NAMES = {
    "append", "copy", "execute_command", "register_script", "restore", "select", "wait", "reset", "delete", "move",
}  # fmt: skip
"""Methods of redis-py that are others' too, and `delete`, which is DEL."""


def commands_in(path):
    core = {name for name in dir(CoreCommands) if name[0] != "_"} - OTHER_NAMES
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in core:
            if re.search(r"(client|redis|store|pipe|pipeline)(\.\w+\(.*\))*$", ast.unparse(node.func.value)):
                yield node.func.attr


def test_every_command_that_clients_send_is_allowed():
    files = [
        file for root in ROOTS for file in root.rglob("*.py") if not any(part in str(file) for part in NOT_WORKERS)
    ]
    files += [Path(module.__file__) for module in (kombu.transport.redis, celery_redis)]
    sent = {name for file in files for name in commands_in(file)}
    assert {"hget", "zadd", "brpop", "publish"} - {"brpop"} <= sent  # or this test looks at nothing
    allowed = set(COMMANDS) | {"scan_iter", "hscan_iter", "zscan_iter", "pubsub"}
    assert sent - allowed == set()


@pytest.fixture
def installation(server, admin, tmp_path):
    """An installation whose worker has a node's user, for one namespace."""
    running = []

    def start(namespace):
        provider = Simulated()
        running.append(provider)
        pools = POOL.format(url=provider.base_url)
        cluster = Cluster(
            tmp_path, server, pools, DICAST_NAMESPACE=namespace, DICAST_TOKEN_SECRET=SECRET, DICAST_LOG_LEVEL="INFO"
        )
        running.append(cluster)
        return cluster

    yield start
    for part in reversed(running):
        part.stop()


@pytest.mark.slow
def test_a_worker_does_a_whole_job_with_it_and_is_refused_nothing(installation, admin, server):
    """With plain names on one server, and on the other with ones that would be patterns."""
    namespace = "blue [*]" if "valkey_version" in admin.info("server") else "dicast"
    cluster = installation(namespace)
    credentials = cluster.app.store_users.create("n1", until=FAR)
    dead = cluster.worker("-c", "2", REDIS_URL=credentials.url)
    cluster.worker(REDIS_URL=credentials.url)
    job = cluster.submit(a_job(items=2))
    assert cluster.report(job)["status"] == "completed"
    assert cluster.app.control.broadcast("ping", reply=True, timeout=5, limit=1)
    cluster.app.control.enable_events()
    cluster.quiet()
    dead.kill()  # another takes over from it with these rights too
    until(lambda: len(cluster.app.registry.registered()) == 1, "it is forgotten")
    refused = {(entry["reason"], entry["object"]) for entry in admin.acl_log()}
    # What a worker asks and need not know, and what redis-py tells newer servers of itself.
    assert refused <= {("command", "config|get"), ("command", "client|setinfo")}


FORBIDDEN = [
    command.split()
    for command in re.split(
        r" \| |\n",
        """\
FLUSHALL | FLUSHDB | CONFIG GET * | CONFIG SET maxmemory 1 | SCRIPT FLUSH | SCRIPT KILL | FUNCTION FLUSH
KEYS * | ACL LIST | ACL SETUSER x | ACL WHOAMI | DEBUG SLEEP 0 | SHUTDOWN | REPLICAOF NO ONE | SAVE | BGSAVE
BGREWRITEAOF | CLIENT KILL USER default | CLIENT LIST | CLIENT PAUSE 1000 | MONITOR | MODULE LIST
CLUSTER INFO | SYNC | PSYNC ? -1 | MIGRATE h 1 k 0 1 | SWAPDB 0 1 | DUMP {dicast}:clock
RESTORE {dicast}:x 0 x | MOVE {dicast}:clock 1 | SORT {dicast}:x | RANDOMKEY | LATENCY RESET | SLOWLOG GET
EVAL return 1 0 | FAILOVER | DBSIZE | OBJECT ENCODING {dicast}:x | LASTSAVE | ROLE | PUBSUB CHANNELS
GET mine | GET {blue}:clock | HGETALL {dicast}.access:tokens | DEL {dicast}.access:audit
HSET {dicast}.access:store_users n x | RPUSH provider.openai@blue x | GET {dicast
RENAME {dicast}:clock elsewhere | PUBLISH {blue}:freed * | PSUBSCRIBE * | SUBSCRIBE __keyspace@0__:x
RPUSH provider.other x""",
    )
]
"""Commands that a worker has no use for, and others' keys and channels."""


def test_nothing_else_can_be_done_with_it(server, admin):
    credentials = users_of(admin, server, queues=("provider.openai",)).create("n1", until=FAR)
    admin.hset("{dicast}:clock", "now", 1)
    before = admin.dbsize()
    with redis.Redis.from_url(credentials.url, decode_responses=True) as node:
        assert node.ping() and node.hget("{dicast}:clock", "now") == "1"
        for command in FORBIDDEN:
            with pytest.raises(redis.ResponseError, match=r"(?i)no permissions|DEBUG command not allowed"):
                node.execute_command(*command)
                pytest.fail(f"{command} was done")
        script = node.script_load("return redis.call(unpack(ARGV))")
        for command in (["FLUSHALL"], ["GET", "mine"], ["CONFIG", "GET", "*"], ["HGETALL", "{dicast}.access:x"]):
            with pytest.raises(redis.ResponseError, match=r"(?i)permission|The user executing|not allowed from script"):
                node.evalsha(script, 0, *command)
                pytest.fail(f"{command} was done by a script")
    assert (admin.dbsize(), len(FORBIDDEN)) == (before, 53)


def test_a_name_with_wildcards_is_a_name():
    assert literal("a*[b]?\\^") == "a\\*\\[b\\]\\?\\\\\\^"
    assert literal(Keys("dicast").at("")) == "{dicast}:"


def test_a_deleted_user_is_cut_off_at_once_and_for_good(server, admin):
    users = users_of(admin, server)
    credentials = users.create("n1", until=FAR)
    held = [redis.Redis.from_url(credentials.url, retry=None, single_connection_client=True) for _ in range(20)]
    waiting = redis.Redis.from_url(credentials.url).pubsub()
    waiting.subscribe("{dicast}:freed")
    assert waiting.get_message(timeout=2)
    for client in held:
        assert client.hset("{dicast}:x", "a", 1) >= 0
    assert users.delete("n1") >= 21
    for client in held:
        with pytest.raises(redis.ConnectionError):
            client.hset("{dicast}:x", "b", 1)
    assert [c for c in admin.client_list() if c["user"] != "default"] == []
    with pytest.raises(redis.AuthenticationError):
        redis.Redis.from_url(credentials.url, retry=None).ping()
    assert admin.hkeys("{dicast}:x") == ["a"]
    assert users.delete("n1") == 0 and users.nodes() == {}


def test_a_node_has_the_same_password_until_its_generation_ends(server, admin):
    users = users_of(admin, server)
    first, again = (users.create("n1", until=FAR, generation=0) for _ in range(2))
    assert first == again
    held = redis.Redis.from_url(first.url, retry=None)
    assert held.ping()
    later = users.create("n1", until=FAR, generation=1)
    assert later.password != first.password and later.user == first.user
    assert users.create("n2", until=FAR).user != first.user
    assert SECRET not in str(first) and first.password not in repr(first)
    records = admin.hgetall("{dicast}.access:store_users")
    assert first.password not in str(records) and later.password not in str(records)
    with pytest.raises(redis.AuthenticationError):
        redis.Redis.from_url(first.url, retry=None).ping()


def test_users_are_set_again_on_a_server_that_has_none(server, admin):
    """As after a fail-over, or a restart: users are not replicated."""
    users = users_of(admin, server)
    one, two = users.create("n1", until=FAR), users.create("n2", until=FAR)
    stranger = users_of(admin, server, namespace="dicast-x").create("n1", until=FAR)
    admin.acl_deluser(one.user)
    users.delete("n2")
    admin.execute_command("ACL", "SETUSER", two.user, "on", ">old", "+@all", "~*")  # left from when it was a master
    fresh = users_of(admin, server)  # another server's
    assert fresh.reconcile() == (1, 1)
    assert redis.Redis.from_url(one.url).ping()
    assert set(admin.acl_users()) == {"default", one.user, stranger.user}
    assert fresh.reconcile() == (0, 0)
    assert fresh.reconcile(renew=True) == (1, 0)


def test_a_user_ends_with_its_token(server, admin, clock):
    users = StoreUsers(admin, "dicast", server, secrets_of(SECRET), StoreBroker(), clock)
    users.create("n1", until=clock.s + 60)
    users.create("n2", until=clock.s + 60)
    assert users.extend("n2", clock.s + 120)
    assert not users.extend("n3", clock.s + 120)
    clock.s += 61
    assert users.reconcile() == (0, 1)
    assert set(users.nodes()) == {"n2"}


def test_a_store_that_lets_no_users_be_made_is_named(server, admin):
    credentials = users_of(admin, server).create("n1", until=FAR)
    with connect(credentials.url) as node:
        users = StoreUsers(node, "{dicast}:", server, secrets_of(SECRET))
        users._key, users._mark = "{dicast}:users", "{dicast}:mark"
        with pytest.raises(StoreUsersUnavailable, match="does not let Dicast make users"):
            users.create("n2", until=FAR)
        with pytest.raises(StoreUsersUnavailable):
            users.reconcile()


def test_users_follow_the_master(tmp_path):
    """`FAILOVER`: the successor has the records, and none of the users."""
    pair = Pair(tmp_path)
    try:
        with connect(pair.url) as admin:
            users = StoreUsers(admin, "dicast", pair.url, secrets_of(SECRET), StoreBroker())
            users._requires_password = True  # this pair has no password
            stays, ended = users.create("n1", until=FAR), users.create("n2", until=FAR)
            held = redis.Redis.from_url(stays.url, retry=None)
            assert held.ping()
            pair.fail_over()
            until(lambda: users.reconcile() == (2, 0), "both are set on the new master")
            assert redis.Redis.from_url(stays.url, retry=None).set("{dicast}:x", 1)
            users.delete("n2")
            pair.fail_over()  # back to the one that still knows both
            until(lambda: users.reconcile() == (0, 1), "the one that ended is deleted there too")
            assert redis.Redis.from_url(stays.url, retry=None).set("{dicast}:x", 2)
            with pytest.raises(redis.AuthenticationError):
                redis.Redis.from_url(ended.url, retry=None).ping()
            held.close()
    finally:
        pair.stop()


def test_an_encrypted_store_is_reached_with_a_nodes_login(tmp_path):
    pem, key = certificate(tmp_path)
    (port,) = free_ports(1)
    with store_server(
        tmp_path / "store", "redis", tls_port=port, tls_cert_file=pem, tls_key_file=key, tls_ca_cert_file=pem,
        tls_auth_clients="no",
    ) as plain, connect(plain) as admin:  # fmt: skip
        public = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={pem}"
        credentials = StoreUsers(admin, "dicast", public, secrets_of(SECRET)).create("n1", until=FAR)
        with connect(credentials.url) as node:
            assert node.set("{dicast}:x", 1)
            assert node.execute_command("PING") and credentials.url.startswith("rediss://dicast-dicast-")


def test_no_users_where_anybody_is_let_in_without_one(server, admin):
    """As an administrator may find out after `CONFIG SET requirepass ''`."""
    admin.acl_setuser("default", enabled=True, nopass=True, keys=["*"], channels=["*"], commands=["+@all"])
    try:
        with pytest.raises(StoreUsersUnavailable, match="set requirepass"):
            users_of(admin, server).create("n1", until=FAR)
    finally:
        admin.execute_command("ACL", "SETUSER", "default", "resetpass", f">{ADMIN}")
    assert users_of(admin, server).create("n1", until=FAR)


@pytest.mark.parametrize(
    ("url", "given"),
    [
        ("redis://h:1/2", "redis://u:p%2F@h:1/2"),
        ("rediss://:old@h:1/2?ssl_ca_certs=/x", "rediss://u:p%2F@h:1/2?ssl_ca_certs=/x"),
        ("redis://h?password=old&db=3", "redis://u:p%2F@h?db=3"),
        ("unix:///run/s?db=3&username=old", "unix://u:p%2F@/run/s?db=3"),
        (
            "sentinel://:old@a:1;sentinel://b:2/0?master=m&sentinel_password=q",
            "sentinel://u:p%2F@a:1;sentinel://u:p%2F@b:2/0?master=m&sentinel_password=q",
        ),
    ],
)
def test_an_address_gets_the_nodes_login_instead_of_ours(url, given):
    assert with_login(url, "u", "p/") == given
