"""Heirs of dead nodes: the messages that a node had taken go back to their queues.

Each node keeps its unacknowledged messages under keys of its own (`own_unacked`), so that they can be told from those
of living nodes at once, instead of after one visibility timeout for all.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Any

from kombu.utils.json import dumps, loads

from workers.nodes import Registry
from workers.store.keys import Keys
from workers.store.scripts import script_text

logger = logging.getLogger(__name__)

VISIBILITY_TIMEOUT_S = 86_400
TOGETHER = 200
_RESTORE = Path(__file__).parent / "store" / "restore.lua"


def own_unacked(keys: Keys, node_id: str) -> dict[str, Any]:
    """Broker transport options (Redis) of one node."""
    prefix = keys.unacked(node_id)
    return {
        "unacked_key": prefix,
        "unacked_index_key": f"{prefix}:index",
        "unacked_mutex_key": f"{prefix}:mutex",
        "visibility_timeout": VISIBILITY_TIMEOUT_S,
    }


def restore_messages(app: Any, keys: Keys, node_id: str, *, keep: frozenset[str] = frozenset()) -> int:
    """Put a node's unacknowledged messages back, except delivery tags to `keep`; returns how many.

    Each goes back at most once, however many heirs there are at it together.
    """
    options = {**app.conf.broker_transport_options, **own_unacked(keys, node_id)}
    with app.connection_for_write(transport_options=options) as connection:
        channel = connection.default_channel
        queue_of = cache(lambda exchange, key: next(iter(channel._lookup(exchange, key)), key))
        with channel.conn_or_acquire() as client:
            restore, restored = client.register_script(script_text(_RESTORE)), 0
            found = {_text(tag): _text(entry) for tag, entry in client.hgetall(options["unacked_key"]).items()}
            tags = [tag for tag in found if tag not in keep]
            for first in range(0, len(tags), TOGETHER):
                moves: list[str] = []
                for tag in tags[first : first + TOGETHER]:
                    message, exchange, routing_key = loads(found[tag])
                    message["properties"]["delivery_info"]["redelivered"] = True
                    moves += (tag, queue_of(exchange, routing_key), dumps(message))
                restored += restore(keys=[options["unacked_key"], options["unacked_index_key"]], args=moves)
            return restored


def _text(raw: bytes | str) -> str:
    return raw.decode() if isinstance(raw, bytes) else raw


def reap(app: Any, registry: Registry, keys: Keys) -> int:
    """One pass over all nodes: take over from those that are dead or silent. Returns how many those were."""
    lost = 0
    for node, heard in registry.known():
        dead = node.proven_dead()
        if heard and not dead:
            continue
        if dead:  # a message that came back before would find its unit in living hands, and end
            registry.silence(node)
        count = restore_messages(app, keys, node.id)
        lost += 1
        if dead:
            freed = registry.bury(node)
            logger.warning(
                "node %s is dead: %d messages put back, %d leases freed", node.id, count, freed,
                extra={"event": "node_lost", "node": node.id, "leases": freed, "messages": count},
            )  # fmt: skip
        else:
            registry.forget(node)
            logger.warning("node %s is silent: %d messages put back, its leases run out", node.id, count)
    return lost
