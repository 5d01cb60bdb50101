"""Proof of death, and nothing less, frees leases."""

import os
import subprocess
import sys
import threading
from dataclasses import asdict, replace

import orjson
import psutil
import pytest

from dicast.workers.nodes.beacon import Beacon, IdleDuties
from dicast.workers.nodes.registry import Node, Registry
from dicast.workers.policy.rules import RulesStatus
from dicast.workers.store.connection import connect
from dicast.workers.store.keys import Keys, encode
from dicast.workers.system.processes import Process
from tests.e2e.cluster import until

KEYS = Keys("test")


def here():
    return Node.for_this_process("w@h", limit=1, slots=1)


def of(process):
    known = Process.find(process.pid)
    return replace(here(), pid=known.pid, started=known.started)


def test_a_living_process_is_not_dead():
    assert not here().proven_dead()


def test_a_gone_process_of_this_host_is_dead():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    node = of(process)
    assert not node.proven_dead()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert node.proven_dead(), "a zombie until it is waited for"
    process.wait()
    process.stdin.close()
    assert node.proven_dead()


@pytest.mark.parametrize("step_s", [1, -1, 3600, -3600])
def test_a_step_of_the_hosts_clock_kills_nobody(monkeypatch, step_s):
    """The kernel tells by its wall clock when the host was booted; a start time counted from there moves."""
    node, boot_time = here(), psutil._psplatform.boot_time
    before = psutil.Process().create_time()
    monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: boot_time() + step_s)
    monkeypatch.setattr(psutil._psplatform, "BOOT_TIME", boot_time() + step_s, raising=False)
    assert psutil.Process().create_time() == pytest.approx(before + step_s, abs=0.1), "this is such a start time"
    assert not node.proven_dead()


def test_a_recycled_pid_is_another_process():
    assert replace(here(), started=1).proven_dead()


def test_silence_from_elsewhere_proves_nothing():
    gone = replace(here(), pid=2**22 + os.getpid())
    assert gone.proven_dead()
    assert not replace(gone, host="elsewhere").proven_dead()
    assert not replace(gone, boot="another boot").proven_dead()


def test_records_of_other_versions_are_read_and_prove_nothing(redis_url):
    """One that tells its start by the wall clock, one that knows more, one that knows less; and what is no node."""
    registry = Registry(connect(redis_url), KEYS)
    node = here()
    facts = asdict(node)
    older = {**facts, "id": "older", "boot": node.boot.rpartition("/")[0], "pid": 2**22 + 1, "started": 1700000000.25}
    newer = {**facts, "id": "newer", "zone": "eu"}
    brief = {"id": "brief", "name": "w@h", "limit": 3, "slots": 2}
    for n, record in enumerate([older, newer, brief, {"id": "none"}, "text", None]):
        registry._redis.hset(KEYS.nodes, str(n), orjson.dumps(record))
    found = {n.id: n for n, heard in registry.registered()}
    assert set(found) == {"older", "newer", "brief"}
    assert found["brief"].limit == 3
    assert not any(n.proven_dead() for n in found.values())


def test_keys_are_injective():
    keys = Keys("a:b")
    parts = ["", ":", "a", "a:b", "%3A", "{}", "é", "a\n", "A"]
    assert len({encode(p) for p in parts}) == len(parts)
    assert keys.at("a", "b:c") != keys.at("a:b", "c")
    assert keys.at("x").count("{") == 1


def test_a_beacon_that_fails_is_told_of_and_heard_again(redis_url, caplog):
    """Whatever is raised: a node that nobody hears is relieved of its work, and its leases count on."""
    faults = [RuntimeError("dictionary changed size during iteration"), KeyError("odd")]
    told = threading.Event()

    class Faulty(IdleDuties):
        @property
        def stuck(self):
            if faults:
                raise faults.pop()
            told.set()
            return "all is stuck"

    node, keys = Node.for_this_process("w@h", limit=1, slots=1), Keys("t")
    beacon = Beacon(
        lambda: Registry(connect(redis_url), keys), node, lambda: RulesStatus(1, 1, 0.0, 0.0, "fixed", 0), Faulty
    )
    beacon.start()
    assert told.wait(5)
    registry = Registry(connect(redis_url), keys)
    until(lambda: [n.stuck for n in registry.alive()] == ["all is stuck"], "it is heard")
    beacon.stop()
    assert registry.registered() == []
    assert [(r.event, r.loop) for r in caplog.records] == [("loop_failed", "beacon")] * 2
