"""What operators want of nodes: orders, which are kept in the store until they are taken back, and requests, which are
for now and are lost if the node is not listening.

A node reads its order in the answer to its beacon, and is woken over a channel so that it reads it at once. It
acknowledges the order in its next beacon; by then no call begins there any more. The store itself grants nothing to a
node that has an order (`admit.lua`), from the moment it is written.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from dicast.workers.store.connection import StoreClient
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import script_text

_SET = Path(__file__).parent / "order.lua"


class OrderKind(StrEnum):
    CORDON = "cordon"
    """Begin no calls."""
    DRAIN = "drain"
    """Begin no calls, and hand back what is not done at the deadline."""
    REMOVE = "remove"
    """Begin no calls, hand back what is not done at the deadline, and end the process."""


@dataclass(frozen=True, slots=True)
class Order:
    """An order for a node. `id` distinguishes it from others of its kind. `at` is Unix seconds by the store's clock.
    `deadline_s`, of a drain or a removal, counts from when the node reads the order."""

    id: str
    kind: OrderKind
    by: str = ""
    at: float = 0.0
    deadline_s: float = 0.0

    @classmethod
    def read(cls, text: str | None) -> Order | None:
        """Parse an order; None if there is none, or if it is of a version that knows other orders."""
        if not text:
            return None
        try:
            return _ORDER.validate_json(text)
        except ValidationError:
            return None


_ORDER = TypeAdapter(Order)


@dataclass(frozen=True, slots=True)
class GiveBack:
    """A request to put messages that wait for a lease back into their queues: how many of each pool."""

    id: str
    node: str
    units: Mapping[str, int]

    @classmethod
    def read(cls, text: str) -> GiveBack | None:
        """Parse a request; None if the text is none."""
        try:
            return _GIVE_BACK.validate_json(text)
        except ValidationError:
            return None


_GIVE_BACK = TypeAdapter(GiveBack)
REPLIES_KEPT_S = 10


class Requests:
    """Sends requests to nodes. A node that is not listening does not answer."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._redis, self._keys = client, keys

    def give_back(self, units: Mapping[str, Mapping[str, int]], wait_s: float) -> dict[str, dict[str, int]]:
        """Have each of these nodes give back so many messages of each pool; returns how many each gave back, for the
        nodes that answered in time."""
        id_, replies = secrets.token_hex(8), dict[str, dict[str, int]]()
        for node, counts in units.items():
            self._redis.publish(self._keys.notices, orjson.dumps(GiveBack(id_, node, counts)))
        end = time.monotonic() + wait_s
        while len(replies) < len(units) and (left_s := end - time.monotonic()) > 0:
            reply = self._redis.blpop([self._keys.given_back(id_)], timeout=left_s)
            if reply is not None:
                node, returned = orjson.loads(reply[1])
                replies[node] = returned
        return replies


class Orders:
    """The store's list of orders."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._redis, self._keys = client, keys
        self._set = client.register_script(script_text(_SET))

    def give(
        self, node: str, kind: OrderKind, *, by: str, deadline_s: float = 0.0, busy: bool = True
    ) -> tuple[Order, int]:
        """Give a node an order; returns the order in force, and how many leases the node holds.

        If an order of the same kind and deadline is in force it is kept, so that a repeated order has no effect. A
        removal is never replaced. Unless `busy`, no order is given to a node that holds leases: the returned order has
        no id then. If there is no such node, the order has no id and the number of leases is -1.
        """
        at = self._redis.time()[0]
        order = Order(secrets.token_hex(8), kind, by, at, deadline_s)
        standing, leases = self._set(
            keys=self._own_keys(),
            args=[node, orjson.dumps(order), "1" if busy else "", self._keys.notices],
        )
        return Order.read(standing) or Order("", kind, by, at, deadline_s), leases

    def take_back(self, node: str) -> None:
        """Take back the node's order, unless the node is to be removed."""
        self._set(keys=self._own_keys(), args=[node, "", "1", self._keys.notices])

    def _own_keys(self) -> list[str]:
        k = self._keys
        return [k.orders, k.holders, k.nodes, k.gone_facts]

    def all(self) -> dict[str, Order]:
        """Return all orders in force, by node."""
        stored = self._redis.hgetall(self._keys.orders).items()
        return {node: order for node, text in stored if (order := Order.read(text)) is not None}

    def standing(self, node: str) -> Order | None:
        """Return the order in force for a node; None if there is none."""
        return Order.read(self._redis.hget(self._keys.orders, node))
