"""Heirs: what the dead held comes back, and can be worked on at once."""

from dataclasses import replace

from workers import reaper
from workers.nodes import Node, Registry
from workers.store.connection import connect
from workers.store.keys import Keys

KEYS = Keys("test")


def test_a_dead_node_owns_nothing_when_its_messages_come_back(redis_url, monkeypatch):
    """A message that comes back while the dead node's beacon still stands finds its unit owned, and is gone again."""
    registry = Registry(connect(redis_url), KEYS)
    living = Node.here("w@h", limit=1, slots=1)
    dead = replace(living, id="dead", pid=2**22 + 1)
    registry.announce(living)
    registry.announce(dead)
    heard = []
    monkeypatch.setattr(
        reaper, "restore_messages", lambda app, keys, node: heard.append((node, [n.id for n in registry.alive()])) or 1
    )
    assert reaper.reap(None, registry, KEYS) == 1
    assert heard == [("dead", [living.id])]
    assert [node for node, _ in registry.known()] == [living]


def test_a_silent_node_loses_its_messages_and_keeps_its_leases(redis_url, monkeypatch):
    """It may be frozen or cut off, with calls open: nothing but proof of death frees their leases."""
    registry = Registry(connect(redis_url), KEYS)
    silent = Node.here("w@h", limit=1, slots=1)
    registry.announce(silent)
    registry.silence(silent)
    registry._redis.hset(KEYS.holders, f"{silent.id}/1", f"p|j|proj|{silent.id}|0")
    monkeypatch.setattr(reaper, "restore_messages", lambda app, keys, node: 3)
    assert reaper.reap(None, registry, KEYS) == 3
    assert registry._redis.hkeys(KEYS.holders) == [f"{silent.id}/1"]
    assert registry.known() == []
