"""The names of all keys in the store.

They are encoded injectively and under one hash tag, so that Redis Cluster can hold them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, unquote


@lru_cache(maxsize=8192)
def encode(part: str) -> str:
    """Encode one path element: different texts give different elements, none with a raw ':', '{', '}' or '%'."""
    return quote(part, safe="-._~")


def decode(element: str) -> str:
    """Return the text of an encoded path element."""
    return unquote(element)


@dataclass(frozen=True, slots=True)
class Keys:
    """All keys of one Dicast installation; `namespace` is the operator's."""

    namespace: str

    def at(self, *parts: str) -> str:
        return ":".join(["{" + encode(self.namespace) + "}", *map(encode, parts)])

    @property
    def clock(self) -> str:
        """hash wall, now: the lease clock"""
        return self.at("clock")

    @property
    def epoch(self) -> str:
        """hash: the store's epoch (epoch.lua)"""
        return self.at("epoch")

    @property
    def leases(self) -> str:
        """zset lease id -> expiry, lease-clock ms"""
        return self.at("leases")

    @property
    def holders(self) -> str:
        """hash lease id -> its record (workers/admission/holder.lua)""" ""
        return self.at("holders")

    @property
    def open(self) -> str:
        """hash of counts: 'all', 'p:<pool>', 'j:<job>', 'o:<pool>|<project>'"""
        return self.at("open")

    def governor(self, pool: str) -> str:
        """hash of one pool: parameters, next_at, enforcement (what the scripts remember); version, cursor, state"""
        return self.at("governor", pool)

    def events(self, pool: str) -> str:
        """stream: what happened in a pool since the governor's last decision"""
        return self.at("events", pool)

    def counters(self, pool: str) -> str:
        """hash of counts since the store was new: 'granted', 'refused:<reason>', 'status:<code>', tokens"""
        return self.at("counters", pool)

    def changes(self, pool: str) -> str:
        """list: the last changes of a pool's limit with their reasons, latest first"""
        return self.at("changes", pool)

    @property
    def overrides(self) -> str:
        """hash pool -> the operator's live overrides, JSON; '' -> those for all pools"""
        return self.at("overrides")

    @property
    def job_limits(self) -> str:
        """hash job -> its frozen limit; a job that is not here makes no call"""
        return self.at("job_limits")

    @property
    def rates(self) -> str:
        """hash pool -> 'calls per second|ms of the last one', an exponential average"""
        return self.at("rates")

    @property
    def assigned(self) -> str:
        """hash pool -> units that were assigned to it, of several they might have gone to, and that nobody works on"""
        return self.at("assigned")

    @property
    def waiting(self) -> str:
        """zset 'pool|node' -> ms when that node was last refused"""
        return self.at("waiting")

    @property
    def short(self) -> str:
        """zset pool -> ms when the limit over all pools last refused it"""
        return self.at("short")

    @property
    def freed(self) -> str:
        """channel: the pool whose lease was given back, '*' for any"""
        return self.at("freed")

    @property
    def nodes(self) -> str:
        """hash node id -> its facts, until it is deregistered"""
        return self.at("nodes")

    @property
    def nodes_heard(self) -> str:
        """zset node id -> lease-clock ms of its last beacon, of the nodes that have one"""
        return self.at("nodes_heard")

    @property
    def nodes_silent(self) -> str:
        """zset node id -> lease-clock ms when its silence was noticed"""
        return self.at("nodes_silent")

    @property
    def nodes_registered(self) -> str:
        """hash node id -> 'generation|Unix ms of its registration|run id of the server that heard it last'; '' -> the
        newest generation"""
        return self.at("nodes_registered")

    @property
    def nodes_gone(self) -> str:
        """zset node id -> Unix ms when it was found dead or silent; they are listed for a day"""
        return self.at("nodes_gone")

    @property
    def gone_facts(self) -> str:
        """hash node id -> 'generation|registered ms|why' and its facts, on a line each, of those in `nodes_gone`"""
        return self.at("gone_facts")

    @property
    def orders(self) -> str:
        """hash node id -> what an operator wants of it, JSON (workers/nodes/registry.py)"""
        return self.at("orders")

    @property
    def notices(self) -> str:
        """channel: the id of a node with a new order, or a request as JSON (workers/nodes/registry.py)"""
        return self.at("told")

    def given_back(self, request: str) -> str:
        """list: what nodes have given back for one request, JSON, for some seconds"""
        return self.at("given_back", request)

    def node(self, node: str) -> str:
        """a node's beacon: exists while it is reachable; the id is not encoded, since scripts append it to
        `node("")`"""
        return f"{self.at('node')}:{node}"

    def unacked(self, node: str) -> str:
        """prefix of the broker's keys for messages that a node has taken and not acknowledged"""
        return self.at("unacked", node)

    @property
    def dead_letters(self) -> str:
        """list of messages that no task could be made of, newest first, JSON"""
        return self.at("dead_letters")

    @property
    def refused_messages(self) -> str:
        """hash reason -> how many messages were set aside for it"""
        return self.at("refused_messages")

    @property
    def nonce_key(self) -> str:
        """string: the secret that nonces follow from, where the operator gives none"""
        return self.at("nonce_key")

    @property
    def beat(self) -> str:
        """string 'node attempt|lease-clock ms': who leads the housekeeping, and until when"""
        return self.at("beat")

    @property
    def spread(self) -> str:
        """string 'node attempt|lease-clock ms': who looks for work that waits at busy nodes, and until when"""
        return self.at("spread")
