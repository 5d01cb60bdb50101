"""Takes over from dead nodes: the messages that a node had taken go back to their queues.

Each node keeps its unacknowledged messages under keys of its own (`own_unacked`), so that they can be distinguished
from those of living nodes at once, instead of after one visibility timeout for all.
"""

from __future__ import annotations

import logging
from typing import Any

from kombu.utils.encoding import bytes_to_str

from dicast.workers.broker.acknowledgement import requeue
from dicast.workers.nodes.registry import Node, Registry
from dicast.workers.store.keys import Keys

logger = logging.getLogger(__name__)

VISIBILITY_TIMEOUT_S = 86_400


def own_unacked(keys: Keys, node_id: str) -> dict[str, Any]:
    """Return the broker transport options (Redis) of one node."""
    prefix = keys.unacked(node_id)
    return {
        "unacked_key": prefix,
        "unacked_index_key": f"{prefix}:index",
        "unacked_mutex_key": f"{prefix}:mutex",
        "visibility_timeout": VISIBILITY_TIMEOUT_S,
    }


def restore_messages(
    app: Any, keys: Keys, node_id: str, *, keep: frozenset[str] = frozenset(), lost: bool = False
) -> int:
    """Put a node's unacknowledged messages back, except those with delivery tags to `keep`; returns how many.

    `lost` says that the node was lost, perhaps because of one of these messages. Each message goes back at most once,
    however many processes do this concurrently.
    """
    options = {**app.conf.broker_transport_options, **own_unacked(keys, node_id)}
    with app.connection_for_write(transport_options=options) as connection:
        channel = connection.default_channel
        with channel.conn_or_acquire() as client:
            tags = [bytes_to_str(tag) for tag in client.hkeys(options["unacked_key"])]
            return requeue(channel, client, [tag for tag in tags if tag not in keep], lost=lost)


class Reaper:
    """Takes over from nodes that are dead or silent, never from the caller's `own`. Messages are put back if the broker
    is the store; RabbitMQ does so itself as soon as it loses a node's connection."""

    def __init__(
        self, app: Any, registry: Registry, keys: Keys, *, own_id: str = "", broker_is_store: bool = True
    ) -> None:
        self._app, self._registry, self._keys = app, registry, keys
        self._own_id, self._broker_is_store = own_id, broker_is_store

    def reap(self) -> int:
        """Check all nodes once and take over from the dead and silent ones; returns how many there were."""
        lost_count = 0
        for node, is_reachable in self._registry.registered():
            if node.id == self._own_id:
                continue
            dead = node.proven_dead()
            if is_reachable and not dead:
                continue
            lost_count += 1
            self._take_over(node, dead=dead)
        return lost_count

    def _take_over(self, node: Node, *, dead: bool) -> None:
        if dead:  # a message put back before that would find its unit claimed by a living node, and end
            self._registry.silence(node)
        count = restore_messages(self._app, self._keys, node.id, lost=True) if self._broker_is_store else 0
        if dead:
            freed = self._registry.deregister(node)
            logger.warning(
                "node %s is dead: %d messages put back, %d leases freed", node.id, count, freed,
                extra={"event": "node_lost", "node": node.id, "leases": freed, "messages": count},
            )  # fmt: skip
        else:
            self._registry.forget(node)
            logger.warning("node %s is silent: %d messages put back, its leases run out", node.id, count)
