"""What the cache of opinions costs planning, and what a large one costs beside a small one.

`python -m lab.bench.cache` starts a server of its own, fills two caches with other jobs' opinions, and plans jobs of
10,000 units, none of whose questions are kept, and then such whose questions are all kept. The caches take turns, round
by round, so that a machine that grows busy meanwhile is unfair to none.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from dicast.app.domain.item import Item
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.panel import Deployment
from dicast.app.domain.plan import DroppedParameter, Stop, lanes
from dicast.app.ledger.client import LedgerClient
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import JobRecord
from dicast.app.pipeline.kept_opinions import KeptOpinions, question_key
from dicast.app.pipeline.plan import Lookahead, PageMessages, Planner
from dicast.app.reports.opinion_cache import Entry, KeptOpinion, OpinionCache
from dicast.workers.nodes.registry import Node, Registry
from dicast.workers.store.connection import connect, connect_async
from lab.bench.admission import KEYS, server

PLACE = "provider.example model"
TEXT = "An answer of a support desk, of some forty words, as they are judged in great numbers. " * 3
ARGUMENT = "The answer names the right form, says where it is found, and leaves no question open. " * 2
TOGETHER = 10_000


class _Pools:
    """One place, with room for a whole job."""

    def __init__(self, units: int) -> None:
        self._units = units

    def model(self, deployment: Deployment) -> str:
        return "model"

    def asked_at(self, deployment: Deployment) -> str:
        return PLACE

    async def limit(self, pool: str) -> int:
        return self._units


class _NoStops:
    async def stops(self, job: JobRecord) -> Mapping[str, Stop]:
        return {}

    async def dropped(self, job: JobRecord) -> list[DroppedParameter]:
        return []


class _Unpublished:
    """Counts the messages that a worker would be sent."""

    messages = 0

    async def page(self, job: JobRecord, page: PageMessages) -> None:
        self.messages += len(page.tokens)


class CacheBench:
    """A ledger with one living node, whose store is emptied before each job."""

    def __init__(self, url: str, folder: Path, units: int) -> None:
        self.store, self.folder, self.units = connect(url), folder, units
        self.client = LedgerClient(self.store, KEYS)
        self.node = Node.for_this_process("w@h", limit=1, slots=1)
        self.asyncs = connect_async(url)
        self.ledger = Ledger(self.asyncs, KEYS, self.node.id, claim_ms=3_600_000, calls_max=9)

    async def job(self, kind: str) -> JobRecord:
        """Put a job into the empty store, whose texts and so whose questions are those of its `kind`."""
        self.store.flushdb()
        Registry(self.store, KEYS).announce(self.node)
        document = {
            "id": "j", "cache": "use", "agents": [{"name": "a"}], "dimensions": [{"id": "d", "instructions": "good?"}],
            "items": [{"id": f"i{n}", "text": f"{kind} {n}. {TEXT}"} for n in range(self.units)],
        }  # fmt: skip
        spec = EvaluationJob.model_validate(document)
        self.client.submit(spec, lanes([("p",)], 1, 1, [False]), self.units, {})
        await self.ledger.start("j", self.units)
        record = await self.ledger.job("j")
        assert record is not None
        return record

    async def plan(self, job: JobRecord, cache: OpinionCache | None) -> tuple[float, int]:
        """Plan a whole job; return the seconds it took and the messages that were left to send."""
        pools, messages = _Pools(self.units), _Unpublished()
        kept = None if cache is None else KeptOpinions(cache, pools)
        planner = Planner(self.ledger, pools, _NoStops(), Lookahead(5.0, 500), str(self.folder), kept)
        began = time.perf_counter()
        await planner.plan(job, 0, messages)
        return time.perf_counter() - began, messages.messages


def fill(cache: OpinionCache, entries: int) -> None:
    """Add opinions on questions that nobody asks here."""
    chance, left = random.Random(entries), entries
    while left:
        count = min(left, TOGETHER)
        cache.add(_entry(chance.randbytes(32), n) for n in range(count))
        left -= count


def _entry(key: bytes, number: int) -> Entry:
    opinion = KeptOpinion(judge="a", model="model", pool="p", score=number % 5 + 1, argument=ARGUMENT)
    return Entry.model_construct(key=key.hex(), kept_ms=number, opinion=opinion)


def _answered(job: JobRecord, items: Sequence[Item]) -> Iterator[Entry]:
    for number, item in enumerate(items):
        yield _entry(question_key(job, job.lanes[0], number, item, PLACE), number)


async def measure(url: str, folder: Path, sizes: Sequence[int], units: int, rounds: int) -> None:
    """Print what planning takes without a cache and with each."""
    bench = CacheBench(url, folder, units)
    caches: dict[str, OpinionCache | None] = {"none": None}
    for size in sizes:
        made = caches[f"{size:,}"] = OpinionCache(folder / str(size), most_bytes=2**40)
        began = time.perf_counter()
        fill(made, size)
        took_s, held = time.perf_counter() - began, made.stats()
        mib = held.bytes / 2**20
        print(f"a cache of {held.entries:,} entries: {mib:.0f} MiB, filled in {took_s:.0f} s", flush=True)
    print(f"\n{units:,} units | entries | planning, s: median (range) | times that with {sizes[0]:,}")
    for kind in ("none is kept", "all are kept"):
        if kind == "all are kept":
            answered = list(_answered(await bench.job(kind), await bench.ledger.items("j", range(units))))
            for each in filter(None, caches.values()):
                each.add(answered)
        taken: dict[str, list[float]] = {name: [] for name in caches}
        for number in range(rounds + 1):
            for name, cache in random.Random(number).sample(list(caches.items()), len(caches)):
                took_s, messages = await bench.plan(await bench.job(kind), cache)
                assert messages == (0 if cache is not None and kind == "all are kept" else units), messages
                if number:  # the first round loads scripts and reads files
                    taken[name].append(took_s)
        for name, times_s in taken.items():
            ratio = median(a / b for a, b in zip(times_s, taken[f"{sizes[0]:,}"], strict=True))
            print(
                f"{kind} | {name} | {median(times_s):.2f} ({min(times_s):.2f}-{max(times_s):.2f}) | {ratio:.2f}",
                flush=True,
            )
    for each in filter(None, caches.values()):
        each.close()
    await bench.asyncs.aclose()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.cache", description=__doc__)
    parser.add_argument("--entries", type=int, nargs="+", default=[1_000, 1_000_000], help="the caches' sizes")
    parser.add_argument("--units", type=int, default=10_000, help="units of a job")
    parser.add_argument("--rounds", type=int, default=9, help="jobs that each cache plans, of each kind")
    given = parser.parse_args(arguments)
    with server() as url, tempfile.TemporaryDirectory(prefix="dicast-cache-") as folder:
        asyncio.run(measure(url, Path(folder), given.entries, given.units, given.rounds))


if __name__ == "__main__":
    main()
