"""The jobs of a world: what they ask, how their units are named at the provider, and who submits them."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import combinations
from pathlib import Path

import orjson

from dicast.app.datasets import survey
from dicast.app.domain.arrangement import arrangement_of
from dicast.app.domain.cost import purse_fields
from dicast.app.domain.escalation import stages_of
from dicast.app.domain.item import Item, ItemSource
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.material import nonce_for
from dicast.app.domain.plan import Lane, Road, lanes
from dicast.app.domain.price import Place, Price, TokenRates, amount_of, cap_fields
from dicast.app.ledger.client import LedgerClient
from dicast.app.ledger.records import MessageId
from lab.chaos.virtual.world import VirtualCall, VirtualPlace


@dataclass(frozen=True)
class SimJob:
    """One job. `text` stands in each of its texts, so that an answer to another job's text can be told."""

    job: EvaluationJob
    lanes: list[Lane]
    units: int
    text: str

    @property
    def id(self) -> str:
        assert self.job.id is not None
        return self.job.id

    def places(self, lane: int, token: str) -> list[VirtualPlace]:
        """The units of one message, as the provider names them."""
        plan, first = self.lanes[lane], MessageId.parse(token)
        order, positions = self.order, first.positions(plan)
        return [
            VirtualPlace(self.text, order[u.item], u.agent, u.dimension, u.replicate) for u in map(plan.unit, positions)
        ]

    def rounds(self, nonce: str | None, item: int, agent: int, dimensions: Sequence[int]) -> Sequence[int]:
        """Which of its rounds a call is of, by the code that stands in it."""
        rounds = range(self.job.replicates)
        if len(rounds) == 1:
            return rounds
        shown, asked = Item(id="i", text=_shown(self.text, item)), [self.job.dimensions[d] for d in dimensions]
        judge = self.job.agents[agent]
        groups = (group for size in range(1, len(rounds) + 1) for group in combinations(rounds, size))
        return next(group for group in groups if nonce_for(SECRET, judge, asked, shown, group) == nonce)

    @property
    def order(self) -> Sequence[int]:
        """The items as they are judged, by what stands in their texts."""
        items = self.units // sum(lane.units_per_item for lane in self.lanes)
        shuffle = arrangement_of(self.job).shuffle
        return range(items) if shuffle is None else shuffle.order([2] * items, random.Random(shuffle.seed))

    def submit(self, client: LedgerClient) -> bool:
        """As dicast.app.submission.submit does it."""
        extra = {}
        if isinstance(self.job.items, ItemSource):
            extra["fingerprint"] = survey(self.job.items, max_text_bytes=1 << 20).fingerprint
        if self.job.question is not None:
            extra["asks"] = "1"
        places = [[Place(choice.pool, MODEL, PRICE) for choice in agent.choices] for agent in self.job.agents]
        extra["places"] = orjson.dumps([[place.as_dict() for place in own] for own in places]).decode()
        extra |= cap_fields(self.job.max_cost, self.job.max_tokens, self.job.max_calls)
        extra |= purse_fields(self.job.project, places)
        return client.submit(self.job, self.lanes, self.units, extra)


SECRET = b"virtual"
"""From which the calls' codes follow, the same in all worlds."""
ESCALATING_SHARE = 0.3
UNCERTAIN_SHARE = 0.25
CAPPED_SHARE = 0.3
TOGETHER_SHARE = 0.2
"""Of jobs without escalation, or with one that looks at replicates: several of these are answered by one call."""
MODEL = "m"
PRICE = Price(
    TokenRates(input=400_000, output=1_600_000, cached_input=100_000, cache_write=500_000), source="virtual",
    batch=Decimal("0.5"),
)  # fmt: skip
BATCH_PRICE = PRICE.of_service(PRICE.batch)
UNCERTAIN = {"combine": "mean", "escalate": {"uncertainty": 0.25}}
PANELS = (
    {"combine": "majority", "escalate": True},
    {"combine": "worst", "threshold": 6, "escalate": True},
    {"combine": "mean", "threshold": 5, "escalate": True},
    {"chief": "a0"},
)


def charge_of(call: VirtualCall) -> int:
    """What the provider charges for a call, in picos."""
    return (PRICE if call.batch is None else BATCH_PRICE).cost(call.usage)


def _shown(text: str, item: int) -> str:
    return f"JOB {text}; ITEM {item};"


def a_job(
    chance: random.Random, job_id: str, pools: list[str], *, unstructured: frozenset[str] = frozenset(),
    folder: Path | None = None, text: str = "", spend: str = "at_least_once", most_items: int = 5,
    road: Road = "online", halved: Collection[str] = (),
) -> SimJob:  # fmt: skip
    """A few units of a seeded shape; with a `folder`, its items may be a file there. Judges of one pool take the
    `road`, if that is one of those that are `halved`."""
    text = text or job_id
    agents, dimensions, items = chance.randint(1, 3), chance.randint(1, 3), chance.randint(1, most_items)
    texts = [{"id": f"i{n}", "text": _shown(text, n)} for n in range(items)]
    source: object = texts
    question = None
    if folder is not None and chance.random() < 0.25:
        source = _in_file(folder, text, texts)
        question = a_question(random.Random(f"question {chance.random()}"), items * agents * dimensions)
    # Drawn aside, so that the same seeds make the same worlds otherwise.
    aside = random.Random(f"{chance.getstate()[1][:8]}")
    panel = aside.choice(PANELS) if agents > 1 and aside.random() < ESCALATING_SHARE else None
    rounds = 1
    if panel is not None and aside.random() < UNCERTAIN_SHARE:
        panel, rounds = UNCERTAIN, 2
    together = 1
    if (panel is None or rounds > 1) and aside.random() < TOGETHER_SHARE:
        rounds = max(rounds, aside.choice([2, 3, 4]))
        together = aside.choice([2, rounds])
    caps: dict[str, object] = {}
    if folder is not None and question is None and aside.random() < CAPPED_SHARE:
        caps, source = a_cap(aside, items * agents * dimensions), _in_file(folder, text, texts)
    job = EvaluationJob.model_validate(
        {
            **caps,
            "id": job_id,
            "project": chance.choice(["red", "blue"]),
            "items": source,
            "spend": spend,
            "question": None if panel is not None and "chief" in panel else question,
            "agents": [_agent(chance, n, pools) for n in range(agents)],
            "dimensions": [{"id": f"d{n}", "instructions": f"DIM {n};"} for n in range(dimensions)],
            "panel": panel,
            "replicates": rounds,
        }
    )
    places = [tuple(choice.pool for choice in agent.choices) for agent in job.agents]
    batching = chance.random() < 0.3
    batched = [batching and not unstructured.intersection(pools) for pools in places]
    roads: list[Road] = [road if len(own) == 1 and own[0] in halved else "online" for own in places]
    plan = lanes(places, dimensions, rounds, batched, stages_of(job), roads, [together] * agents)
    return SimJob(job, plan, items * agents * dimensions * rounds, text)


def _in_file(folder: Path, text: str, texts: Sequence[object]) -> dict[str, str]:
    path = folder / f"{text}.jsonl"
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in texts))
    return {"path": str(path)}


def a_cap(chance: random.Random, units: int) -> dict[str, object]:
    """One of the caps, so low that many jobs meet it: a call of these worlds is bounded by some 6,000 tokens."""
    tokens = chance.randint(6_000, 30_000)
    cost = str(amount_of(tokens * PRICE.rates.input))
    return chance.choice([{"max_cost": cost}, {"max_tokens": tokens}, {"max_calls": chance.randint(1, units)}])


def a_question(chance: random.Random, units: int) -> dict[str, object] | None:
    """Half of the jobs ask something: all are scored alike, so that their calls are spent before it is known."""
    asked = {"dimension": "d0", "width": 0.001, "most_calls": chance.randint(1, units)}
    return asked if chance.random() < 0.5 else None


def _agent(chance: random.Random, number: int, pools: list[str]) -> dict[str, object]:
    """One in four may be asked at several pools."""
    agent: dict[str, object] = {"name": f"a{number}", "persona": f"AGENT {number};"}
    if len(pools) > 1 and chance.random() < 0.25:
        return {**agent, "deployments": [{"pool": pool} for pool in pools]}
    return {**agent, "pool": chance.choice(pools)}
