"""What caps and budgets cost a claim, and how much of them can be used.

`python -m lab.bench.caps` starts a server of its own and prints two tables. A unit is one claim and its record. Jobs
without a cap, with one, and with a cap and two budgets take turns, block by block, so that a machine that grows busy
meanwhile is unfair to none. The share of a cap, or of a budget that two jobs share, is what was spent of it when
nothing more fits, with 8 calls open at a time, each of which takes a random part of what is reserved for it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import orjson

from dicast.app.domain.cost import MoneyBudget, purse_fields
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.plan import lanes
from dicast.app.domain.price import PICO, Place, Price, TokenRates, amount_of, cap_fields
from dicast.app.ledger.client import LedgerClient
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import Claim, ClaimVerdict, MessageId, UnitResult
from dicast.workers.nodes.registry import Node, Registry
from dicast.workers.store.connection import StoreClient, connect, connect_async
from lab.bench.admission import KEYS, server

PLACE = Place("p", "m", Price(TokenRates(input=400_000, output=1_600_000, cached_input=100_000, cache_write=400_000)))
BLOCK, BLOCKS = 200, 40
OPEN = 8
TEXT_BYTES, FURTHER_TOKENS, OUTPUT_TOKENS = 2_000, 4_500, 512
"""An item, the most tokens of a question beside it, and those of its answer."""
LARGE = 100_000 * PICO
PAYLOAD = b'{"opinion":{"score":5}}'


def budgets(project: str, most: int) -> list[MoneyBudget]:
    """Two, as of a project and of a pool."""
    currency, periods = "USD", {"day": most, "month": most, "total": most}
    return [MoneyBudget("project", project, currency, periods), MoneyBudget("pool", "p", currency, periods)]


@dataclass
class CapsBench:
    """A ledger with one living node."""

    url: str
    store: StoreClient = field(init=False)
    pages: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = connect(self.url)
        node = Node.for_this_process("w@h", limit=OPEN, slots=OPEN)
        Registry(self.store, KEYS).announce(node)
        self.store.persist(KEYS.node(node.id))
        self.client = LedgerClient(self.store, KEYS)
        self.ledger = Ledger(connect_async(self.url), KEYS, node.id, claim_ms=3_600_000, calls_max=9)

    def submit(self, job_id: str, project: str, max_cost: int | None) -> EvaluationJob:
        """Put a job with one judge and one dimension into the ledger."""
        caps = {} if max_cost is None else {"max_cost": str(amount_of(max_cost))}
        document = {
            "id": job_id, "project": project, "items": [{"id": "i", "text": "t"}], "agents": [{"name": "a"}],
            "dimensions": [{"id": "d", "instructions": "how good?"}], **caps,
        }  # fmt: skip
        job = EvaluationJob.model_validate(document)
        extra = {"places": orjson.dumps([[PLACE.as_dict()]]).decode(), **purse_fields(project, [[PLACE]])}
        extra |= cap_fields(job.max_cost, None, None)
        self.client.submit(job, lanes([("p",)], 1, 1, [False]), 1, extra)
        return job

    async def page(self, job: EvaluationJob, units: int) -> PageRef:
        """Open the job's next page, whose items hold `TEXT_BYTES` of text."""
        assert job.id is not None
        await self.ledger.start(job.id, OPEN)
        number = self.pages[job.id] = self.pages.get(job.id, -1) + 1
        ref = PageRef(job.id, self.client.incarnation(job.id) or "", 0, number)
        (item,) = job.items if isinstance(job.items, list) else []
        items = {n: item.model_copy(update={"text": "x" * TEXT_BYTES}) for n in range(units)}
        await self.ledger.open_page(ref, 0, units, "more", 1, items, capped=job.is_capped)
        return ref

    async def claim(self, ref: PageRef, position: int, needs: str) -> Claim:
        *_, (held,) = await self.ledger.claim(ref, MessageId(position), [position], position, needs=needs)
        return held

    async def record(self, ref: PageRef, held: Claim, spent: int) -> None:
        counters = {"calls": 1, "spent": spent, "b:0.0.20000:calls": 1, "b:0.0.20000:spent": spent}
        await self.ledger.record(ref, counters, [UnitResult(held.position, held.fence, PAYLOAD, True)])

    def cpu_s(self) -> float:
        used = self.store.info("cpu")
        return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def needs_of(kept: Sequence[MoneyBudget]) -> str:
    rates = PLACE.price.rates if PLACE.price is not None else TokenRates(0, 0, 0, 0)
    return f"{FURTHER_TOKENS},{OUTPUT_TOKENS},{rates.input},{rates.output}" + "".join(of.needs for of in kept)


async def costs(bench: CapsBench) -> Mapping[str, Mapping[str, Sequence[float]]]:
    """Return the microseconds of CPU that a claim and a record take, of store and asker together, by kind of job and
    block."""
    kept = budgets("red", LARGE)
    kinds = {
        "without": (bench.submit("without", "blue", None), ""),
        "with a cap": (bench.submit("capped", "blue", 9_000 * PICO), needs_of([])),
        "with a cap and two budgets": (bench.submit("budgeted", "red", 9_000 * PICO), needs_of(kept)),
    }
    taken: dict[str, dict[str, list[float]]] = {name: {"claim": [], "record": [], "store": []} for name in kinds}
    for block in range(BLOCKS):
        for name, (job, needs) in sorted(kinds.items(), key=lambda _: random.random()):
            ref, claims = await bench.page(job, BLOCK), []
            began = bench.cpu_s(), time.process_time()
            for position in range(BLOCK):
                claims.append(await bench.claim(ref, position, needs))
            between = bench.cpu_s(), time.process_time()
            for held in claims:
                assert held.verdict is ClaimVerdict.RUN
                await bench.record(ref, held, 10**9)
            ended = bench.cpu_s(), time.process_time()
            if block:  # the first ones load the scripts
                micros = 1e6 / BLOCK
                taken[name]["claim"].append(micros * (sum(between) - sum(began)))
                taken[name]["record"].append(micros * (sum(ended) - sum(between)))
                taken[name]["store"].append(micros * (between[0] - began[0]))
    return taken


async def used_share(bench: CapsBench, name: str, most: int, *, budget: bool) -> tuple[float, int]:
    """Return which share of a cap, or of a budget that two jobs share, was spent when nothing more fits, and the
    number of calls."""
    kept = budgets(name, most)[:1] if budget else []
    jobs = [bench.submit(f"{name}-{n}", name, None if budget else most) for n in range(2 if budget else 1)]
    needs, chance, spent, calls = needs_of(kept), random.Random(name), 0, 0
    refs = [await bench.page(job, 8 * BLOCK) for job in jobs]
    open_calls: list[tuple[PageRef, Claim]] = []
    waiting = [(ref, position) for position in range(8 * BLOCK) for ref in refs]
    while waiting or open_calls:
        while waiting and len(open_calls) < OPEN:
            ref, position = waiting[0]
            bench.store.hdel(bench.ledger.keys.page(ref), f"w:{position}")  # its time has come
            held = await bench.claim(ref, position, needs)
            if held.verdict is not ClaimVerdict.RUN:
                break
            open_calls.append((waiting.pop(0)[0], held))
        if not open_calls:
            return spent / most, calls
        ref, held = open_calls.pop(chance.randrange(len(open_calls)))
        price = PLACE.price
        assert price is not None
        tokens = int(chance.uniform(0.15, 0.4) * held.input_tokens), chance.randint(50, 300)
        cost = tokens[0] * price.rates.input + tokens[1] * price.rates.output
        await bench.record(ref, held, cost)
        spent, calls = spent + cost, calls + 1
    raise RuntimeError("the units were fewer than the money")


async def measure(url: str) -> None:
    bench = CapsBench(url)
    taken = await costs(bench)
    print("job | claim, CPU µs | of it the store | record, CPU µs | claim, times | claim and record, times")
    base = taken["without"]
    for name, of in taken.items():
        times = median(a / b for a, b in zip(of["claim"], base["claim"], strict=True))
        both = [
            (claim + record) / (base_claim + base_record)
            for claim, record, base_claim, base_record in zip(
                of["claim"], of["record"], base["claim"], base["record"], strict=True
            )
        ]
        numbers = " | ".join(f"{median(of[kind]):.0f}" for kind in ("claim", "store", "record"))
        print(f"{name} | {numbers} | {times:.2f} | {median(both):.2f}")
    print("\nmoney | calls | share used, %")
    for dollars in ("0.20", "0.50", "1.00"):
        for kind in ("cap", "budget"):
            amount = int(float(dollars) * PICO)
            share, calls = await used_share(bench, f"{kind}{dollars}", amount, budget=kind == "budget")
            print(f"{kind} of {dollars} | {calls} | {100 * share:.1f}")


def main() -> None:
    with server() as url:
        asyncio.run(partial(measure, url)())


if __name__ == "__main__":
    main()
