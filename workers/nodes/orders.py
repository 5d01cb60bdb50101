"""What operators want of nodes: orders, which stand in the store until they are taken back, and requests, which are for
now and are lost with whoever does not hear them.

A node reads its order in the answer to its beacon, and is woken by a word on a channel, so that it reads it at once. It
acknowledges in its next beacon: by then no call begins there any more. The store itself grants nothing to a node that
has an order (`admit.lua`), from the moment it is written.
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
    """The same, and hand back what is not done when the deadline is over."""
    REMOVE = "remove"
    """The same, and end the process."""


@dataclass(frozen=True, slots=True)
class Order:
    """`id` tells it from others of its kind; `at` is Unix seconds by the store's clock; `deadline_s`, of a drain and a
    removal, counts from when the node reads it."""

    id: str
    kind: OrderKind
    by: str = ""
    at: float = 0.0
    deadline_s: float = 0.0

    @classmethod
    def read(cls, text: str | None) -> Order | None:
        """None if there is none, or if it is of a version that knows other orders."""
        if not text:
            return None
        try:
            return _ORDER.validate_json(text)
        except ValidationError:
            return None


_ORDER = TypeAdapter(Order)


@dataclass(frozen=True, slots=True)
class GiveBack:
    """A request: messages that wait for a lease go back to their queues, so many of each pool."""

    id: str
    node: str
    units: Mapping[str, int]

    @classmethod
    def read(cls, text: str) -> GiveBack | None:
        """None if it is none."""
        try:
            return _GIVE_BACK.validate_json(text)
        except ValidationError:
            return None


_GIVE_BACK = TypeAdapter(GiveBack)
REPLIES_KEPT_S = 10


class Requests:
    """Asks nodes for something now; who does not hear it does not answer."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._redis, self._keys = client, keys

    def give_back(self, units: Mapping[str, Mapping[str, int]], wait_s: float) -> dict[str, dict[str, int]]:
        """Have each of these nodes give back so many messages of each pool; returns how many each did, of those that
        answered in time."""
        id_, found = secrets.token_hex(8), dict[str, dict[str, int]]()
        for node, wanted in units.items():
            self._redis.publish(self._keys.told, orjson.dumps(GiveBack(id_, node, wanted)))
        end = time.monotonic() + wait_s
        while len(found) < len(units) and (left_s := end - time.monotonic()) > 0:
            reply = self._redis.blpop([self._keys.given_back(id_)], timeout=left_s)
            if reply is not None:
                node, given = orjson.loads(reply[1])
                found[node] = given
        return found


class Orders:
    """The store's list of orders."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._redis, self._keys = client, keys
        self._set = client.register_script(script_text(_SET))

    def give(
        self, node: str, kind: OrderKind, *, by: str, deadline_s: float = 0.0, busy: bool = True
    ) -> tuple[Order, int]:
        """Have an order stand for a node; returns it, and how many leases the node holds. One of the same kind and
        deadline that stands already is kept, so that giving it twice is giving it once; a removal is never replaced.
        Unless `busy`, it is not given to a node that holds leases: the order returned then has no id; nor has it if
        there is no such node, which -1 leases tell."""
        at = self._redis.time()[0]
        order = Order(secrets.token_hex(8), kind, by, at, deadline_s)
        standing, leases = self._set(
            keys=self._own_keys(),
            args=[node, orjson.dumps(order), "1" if busy else "", self._keys.told],
        )
        return Order.read(standing) or Order("", kind, by, at, deadline_s), leases

    def take_back(self, node: str) -> None:
        """No order stands for the node any more, unless it is to be removed."""
        self._set(keys=self._own_keys(), args=[node, "", "1", self._keys.told])

    def _own_keys(self) -> list[str]:
        k = self._keys
        return [k.orders, k.holders, k.nodes, k.gone_facts]

    def all(self) -> dict[str, Order]:
        """Those that stand, by node."""
        found = self._redis.hgetall(self._keys.orders).items()
        return {node: order for node, text in found if (order := Order.read(text)) is not None}

    def of(self, node: str) -> Order | None:
        """The order that stands for a node."""
        return Order.read(self._redis.hget(self._keys.orders, node))
