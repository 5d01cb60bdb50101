"""Proof of death, and nothing less, frees leases."""

import os
import subprocess
import sys
from dataclasses import replace

from workers.nodes import Node
from workers.store.keys import Keys, encode


def test_a_living_process_is_not_dead():
    assert not Node.here("w@h", limit=1, slots=1).proven_dead()


def test_a_gone_process_of_this_host_is_dead():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    import psutil

    here = Node.here("w@h", limit=1, slots=1)
    node = replace(here, pid=process.pid, started=psutil.Process(process.pid).create_time())
    assert not node.proven_dead()
    process.kill()
    assert node.proven_dead() or process.wait()  # a zombie until it is waited for
    process.wait()
    process.stdin.close()
    assert node.proven_dead()


def test_a_recycled_pid_is_another_process():
    assert replace(Node.here("w@h", limit=1, slots=1), started=1.0).proven_dead()


def test_silence_from_elsewhere_proves_nothing():
    gone = replace(Node.here("w@h", limit=1, slots=1), pid=2**22 + os.getpid())
    assert gone.proven_dead()
    assert not replace(gone, host="elsewhere").proven_dead()
    assert not replace(gone, boot="another boot").proven_dead()


def test_keys_are_injective():
    keys = Keys("a:b")
    parts = ["", ":", "a", "a:b", "%3A", "{}", "é", "a\n", "A"]
    assert len({encode(p) for p in parts}) == len(parts)
    assert keys.at("a", "b:c") != keys.at("a:b", "c")
    assert keys.at("x").count("{") == 1
