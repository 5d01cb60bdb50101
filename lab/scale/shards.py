"""A prototype: an installation's pools and jobs on several stores, by the product's own classes and scripts.

Today's keys all carry one hash tag, the namespace, so that a cluster keeps an installation in one slot of one node.
`ShardKeys` puts the shard's name into the tag as well; nothing else about a key changes. What the scripts of a job and
those of a pool have in common must then be told to both, which is `Tenant.start`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import count
from typing import Any

import orjson

from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.plan import lanes
from dicast.app.ledger.client import LedgerClient
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import ClaimVerdict, MessageId, UnitResult, WriteVerdict
from dicast.workers.admission.leases import LeaseStore, LeaseVerdict, Returned, Want
from dicast.workers.nodes.registry import Node, Registry
from dicast.workers.policy.calls import CallOutcome, Cost
from dicast.workers.store.connection import AsyncStoreClient, StoreClient, connect, connect_async
from dicast.workers.store.keys import Keys, encode
from lab.bench.admission import parameters
from lab.scale.stores import SLOTS, slot_of

NAMESPACE = "scale"
LIMIT = 1000
CLAIM_MS, TTL_MS, CALLS_MAX, RETENTION_S = 600_000, 600_000, 9, 3600
DIMENSIONS, PAGE = 10, 400
RESULT = orjson.dumps({"opinion": {"argument": "It says why, and how. " * 14, "evidence": ["A text"], "score": 7}})
"""Of about the size that the bench counts for a unit that is done."""


@dataclass(frozen=True, slots=True)
class ShardKeys(Keys):
    """The keys of one shard of an installation: no two shards have the same, and each shard's have one hash tag."""

    shard: str = ""

    def at(self, *parts: str) -> str:
        tag = "{" + encode(self.namespace) + "/" + encode(self.shard) + "}"
        return ":".join([tag, *map(encode, parts)])


@dataclass(frozen=True, slots=True)
class Shard:
    """A store, or a cluster's node, and the keys that lie there."""

    url: str
    keys: Keys


class Shards:
    """Where everything is: of so many shards, a name's is the one that wins its draw, so that another shard takes only
    its own part from the others."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.all = shards

    def of(self, name: str) -> Shard:
        """The shard of a pool's name or a job's id."""
        return max(self.all, key=lambda shard: zlib.crc32(f"{shard.keys.at()}|{name}".encode()))

    def spread(self, prefix: str) -> Iterator[str]:
        """Names that begin so, one for each shard in their order."""
        for shard in self.all:
            yield next(name for n in count() if self.of(name := f"{prefix}-{n}") is shard)


def on(urls: Sequence[str]) -> Shards:
    """A shard on each of these stores."""
    return Shards([Shard(url, ShardKeys(NAMESPACE, str(n))) for n, url in enumerate(urls)])


def on_cluster(urls: Sequence[str]) -> Shards:
    """A shard on each of a cluster's nodes: the first of the numbered ones whose hash slot lies there."""
    with connect(urls[0]) as client:
        found = []
        for node, url in enumerate(urls):
            slots = range(node * SLOTS // len(urls), (node + 1) * SLOTS // len(urls))
            named = (ShardKeys(NAMESPACE, str(n)) for n in count())
            found.append(Shard(url, next(keys for keys in named if slot_of(client, keys.clock) in slots)))
    return Shards(found)


def prepare(client: StoreClient, keys: Keys) -> None:
    """A store that is in use already: its first epoch has begun and was heard."""
    client.hset(keys.epoch, "number", 1)


class Connection:
    """One asker's connections: to the shard of its pool and to that of its job."""

    def __init__(self, tenant: Tenant) -> None:
        self.pool_client, self.job_client = connect_async(tenant.at_pool.url), connect_async(tenant.at_job.url)
        self.leases = LeaseStore(self.pool_client, tenant.at_pool.keys)
        self.ledger = tenant.ledger(self.job_client)

    async def close(self) -> None:
        await self.pool_client.aclose()
        await self.job_client.aclose()


class Tenant:
    """A job that goes to one pool, whose ledger and admission may be on different shards, and a node that works at it.

    Its units are claimed, recorded and granted by their positions; each step below raises `AssertionError` unless the
    store does what it is asked."""

    def __init__(self, at_pool: Shard, at_job: Shard, pool: str, job: str) -> None:
        self.at_pool, self.at_job, self.pool, self.job = at_pool, at_job, pool, job
        self.node = Node.for_this_process(f"{job}@{pool}", limit=LIMIT, slots=LIMIT)
        self._incarnation, self._pages = "", 0

    def seen_from(self, shard: Shard) -> Tenant:
        """The same job and node, with pool and ledger reached by another shard's address."""
        seen = copy(self)
        seen.at_pool = seen.at_job = shard
        return seen

    def ledger(self, client: AsyncStoreClient) -> Ledger:
        return Ledger(client, self.at_job.keys, self.node.id, claim_ms=CLAIM_MS, calls_max=CALLS_MAX)

    async def start(self, units: int, limit: int = LIMIT) -> None:
        """Announce the node, submit and start the job, publish so many units as pages. What app/ledger/start.lua writes
        on the job's shard, the pool's is told before anything is published: without it nothing is granted there."""
        for shard in {shard.url: shard for shard in (self.at_pool, self.at_job)}.values():
            with connect(shard.url) as client:
                prepare(client, shard.keys)
                Registry(client, shard.keys).announce(self.node)
                client.persist(shard.keys.node(self.node.id))  # nobody renews it while it is measured
        job = _job(self.job, units)
        with connect(self.at_job.url) as client:
            LedgerClient(client, self.at_job.keys).submit(job, lanes([(self.pool,)], DIMENSIONS, 1, [False]), units, {})
        with connect(self.at_pool.url) as client:
            record = {"parameters": orjson.dumps(parameters(10 * limit)), "version": 1}
            client.hset(self.at_pool.keys.governor(self.pool), mapping=record)
            client.hset(self.at_pool.keys.job_limits, self.job, limit)
        client = connect_async(self.at_job.url)
        await self._publish(self.ledger(client), units, limit)
        await client.aclose()

    async def _publish(self, ledger: Ledger, units: int, limit: int) -> None:
        await ledger.start(self.job, limit)
        found = await ledger.job(self.job)
        assert found is not None
        self._incarnation, self._pages = found.incarnation, -(-units // PAGE)
        for number in range(self._pages):
            first, last = number * PAGE, min(units, (number + 1) * PAGE)
            indices = range(first // DIMENSIONS, -(-last // DIMENSIONS))
            items = dict(zip(indices, await ledger.items(self.job, indices), strict=True))
            cursor = "" if last == units else orjson.dumps({"position": last}).decode()
            assert await ledger.open_page(self._page(number), first, last - first, cursor, 1, items) > 0

    def _page(self, number: int) -> PageRef:
        return PageRef(self.job, self._incarnation, 0, number)

    async def grant(self, leases: LeaseStore, first: int, held: Sequence[str], wanted: int = 1) -> list[str]:
        """Give leases back with their outcomes and get as many new ones; one step."""
        wants = [
            Want(f"{self.job}/{n}", self.job, "team", "m", 300.0, 100.0, 0.5) for n in range(first, first + wanted)
        ]
        back = [Returned(lease, CallOutcome(200, Cost(1.0, 310.0, 90.0), reporter=lease)) for lease in held]
        answer = await leases.admit(
            pool=self.pool, node=self.node.id, ttl_ms=TTL_MS, give_back=back, wants=wants
        )  # fmt: skip
        assert set(answer.verdicts) <= {LeaseVerdict.GRANTED}, answer.reason
        return [want.lease for want in wants]

    async def claim(self, ledger: Ledger, position: int) -> int:
        """The fence of the unit's claim."""
        ref, item = self._page(position // PAGE), position // DIMENSIONS
        _, _, (claim,) = await ledger.claim(ref, MessageId(position), [position], item)
        assert claim.verdict is ClaimVerdict.RUN, claim
        return claim.fence

    async def record(self, ledger: Ledger, fences: dict[int, int]) -> None:
        """Results of units of one page, by position."""
        (page,) = {position // PAGE for position in fences}
        results = [UnitResult(position, fence, RESULT, True) for position, fence in fences.items()]
        recorded = await ledger.record(self._page(page), {"calls": len(fences)}, results)
        assert set(recorded.written) == {WriteVerdict.NEW}, recorded

    async def unit(self, connection: Connection, position: int) -> None:
        """One unit from its lease to its result."""
        held = await self.grant(connection.leases, position, [])
        fence = await self.claim(connection.ledger, position)
        await self.grant(connection.leases, position, held, wanted=0)
        await self.record(connection.ledger, {position: fence})

    async def finish(self, connection: Connection) -> int:
        """Gather every page and complete the job; how many results there were."""
        ledger, found = connection.ledger, 0
        for number in range(self._pages):
            found += len(await ledger.take_page(self._page(number)) or {})
            finish, _ = await ledger.close_page(self._page(number), 1)
        assert finish, "the last page ends the job"
        assert await ledger.claim_finish(self.job)
        assert await ledger.complete(self.job, self._incarnation, b"{}", RETENTION_S)
        await connection.pool_client.hdel(self.at_pool.keys.job_limits, self.job)
        return found


def _job(job: str, units: int) -> EvaluationJob:
    spec: dict[str, Any] = {
        "id": job,
        "items": [{"id": f"item-{n}", "text": f"A text to judge, number {n}."} for n in range(-(-units // DIMENSIONS))],
        "agents": [{"name": "judge"}],
        "dimensions": [{"id": f"dim-{n}", "instructions": "Is it good?"} for n in range(DIMENSIONS)],
    }
    return EvaluationJob.model_validate(spec)
