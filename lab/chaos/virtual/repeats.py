"""Every verb twice: a small world, run once as it is and then once for each parcel and each way to lose its answer.

Such a run must end as the first one did: the same outcomes, the same state of the store, the same report, and books
that are the provider's. What the provider answers depends only on what it is asked and how often, so that a call more
or less shows.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from dicast.workers.store.connection import StoreClient
from lab.chaos.virtual import books
from lab.chaos.virtual.fates import LOSSES, Fate
from lab.chaos.virtual.jobs import a_job
from lab.chaos.virtual.node import Shape
from lab.chaos.virtual.scene import Scene, SeedResult
from lab.chaos.virtual.world import Answers, Odds

TOLD = ("status", "scored", "failed", "calls", "retries", "requeues", "timeouts", "possible_double_charges",
        "input_tokens", "output_tokens")  # fmt: skip


@dataclass(frozen=True)
class Small:
    """A world small enough to lose each of its answers: `seed` draws the job."""

    name: str
    seed: int
    nodes: int = 1
    pools: tuple[str, ...] = ("p",)
    spend: str = "at_least_once"
    answers: Answers = Answers()
    cancel_at: float = 0.0


SMALL = (
    Small("plain", 1),
    Small("failures", 33, nodes=2, answers=Answers(refuse=0.3, spoil=0.3)),
    Small("timeout", 32, answers=Answers(hang=0.5)),
    Small("batches", 14, nodes=2, answers=Answers(spoil=0.2, part=0.6)),
    Small("once", 1, spend="at_most_once", answers=Answers(refuse=0.3)),
    Small("choice", 6, nodes=2, pools=("p", "q")),
    Small("cancelled", 3, nodes=2, cancel_at=1.0),
)


@dataclass(frozen=True)
class Loss:
    """What came of losing one parcel's answer in one way; `verb` names what was in the parcel."""

    world: str
    parcel: int
    way: str
    verb: str
    verdict: SeedResult

    def __str__(self) -> str:
        return f"{self.world}: parcel {self.parcel} ({self.verb}) {self.way}: {'; '.join(self.verdict.violations[:3])}"


class SmallScene(Scene):
    """One run of a small world, with the fates that are chosen for its parcels."""

    def __init__(self, client: StoreClient, small: Small, chosen: dict[int, Fate]) -> None:
        odds = Odds(answers=small.answers)
        super().__init__(client, small.seed, limit=2, shape=Shape(small.pools, page_max=4), odds=odds)
        self.world.chosen = chosen
        chance = random.Random(small.seed)
        for _ in range(small.nodes):
            self.bear()
        job = a_job(chance, "j", list(small.pools), spend=small.spend, most_items=2)
        self.submit(job)
        if small.cancel_at:
            self.allowed["j"] = books.Allowed(cancelled=True)
            self.world.at(small.cancel_at, lambda: self.caller.cancel("j"))
        self.end: dict[str, Any] = {}

    def judge(self) -> None:
        super().judge()
        report = self.world.announced.get("j", {})
        state = _one_purse(books.state_of(self.world))
        self.end = {"report": {name: report.get(name) for name in TOLD}, **state}


def _one_purse(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state with what all pools' purses have in sum: which pool a judge's unit goes to depends on which of
    them has room at that moment."""
    merged, sums = {}, defaultdict[str, Counter[str]](Counter)
    for name, fields in state.items():
        before, is_purse, rest = name.partition(":purse:pool:")
        if not is_purse or not isinstance(fields, dict):
            merged[name] = fields
            continue
        purse = f"{before}{is_purse}*:{rest.partition(':')[2]}"
        for field, amounts in fields.items():
            for part, amount in zip(("spent", "unknown"), amounts.split(","), strict=True):
                sums[purse][f"{field} {part}"] += int(amount)
    return merged | {purse: dict(parts) for purse, parts in sums.items()}


def without_loss(client: StoreClient, small: Small) -> tuple[dict[str, Any], int]:
    """How the world ends when nothing is lost, and how many parcels that takes."""
    scene = SmallScene(client, small, {})
    verdict = scene.run()
    assert not verdict.violations, f"{small.name} without a loss: {verdict.violations}"
    return scene.end, scene.world.parcels


def lose(client: StoreClient, small: Small, parcel: int, way: str, end: dict[str, Any] | None = None) -> Loss:
    """The same world, with the answer to one parcel lost in one way. `end` is how it ends without."""
    end = end or without_loss(client, small)[0]
    scene = SmallScene(client, small, {parcel: LOSSES[way]})
    verdict = scene.run()
    if not verdict.violations and not small.cancel_at and scene.end != end:  # a cancelled job ends where it stands
        verdict.violations.append(f"the end differs: {_difference(end, scene.end)}")
    verb = scene.world.touched.get(parcel, "not sent")
    return Loss(small.name, parcel, way, verb, replace(verdict, faults=f"{way}, {verb}"))


def every_loss(
    client: StoreClient, small: Small, *, part: int = 0, parts: int = 1, most: int | None = None
) -> Iterator[Loss]:
    """All losses, or one of so many `parts`, or `most` of them, the same each time."""
    end, parcels = without_loss(client, small)
    wanted = [(parcel, way) for parcel in range(parcels) for way in LOSSES][part::parts]
    for parcel, way in random.Random(1).sample(wanted, min(most or len(wanted), len(wanted))):
        yield lose(client, small, parcel, way, end)


def _difference(expected: dict[str, Any], found: dict[str, Any]) -> str:
    names = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    parts = []
    for name in names[:3]:
        before, after = expected.get(name), found.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            keys = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
            parts += [f"{name} {k}: {before.get(k)!r} became {after.get(k)!r}" for k in keys[:3]]
        else:
            parts.append(f"{name}: {before!r} became {after!r}")
    return "; ".join(parts)
