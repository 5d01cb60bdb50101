"""One seed: a world, its jobs, a plan of faults, the way back to rest, and the verdict."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from dicast.app.domain.plan import STANDARD, Road
from dicast.workers.store.connection import StoreClient
from lab.chaos.virtual.account import BatchAccount, Dialect
from lab.chaos.virtual.books import Allowed
from lab.chaos.virtual.broker import MessageOdds
from lab.chaos.virtual.budgets import give_budgets
from lab.chaos.virtual.fates import BatchOdds, StoreOdds
from lab.chaos.virtual.faults import Faults
from lab.chaos.virtual.jobs import SimJob, a_job
from lab.chaos.virtual.node import Shape
from lab.chaos.virtual.scene import Scene, SeedResult
from lab.chaos.virtual.world import Answers, Odds

__all__ = ["BatchSeed", "Seed", "SeedResult"]

FAULTS_UNTIL_S = 15.0
INTERVALS = replace(STANDARD, batch_poll_ms=(1000, 5000), batch_listed_ms=20_000)
"""A provider's list lags by seconds here, and not by minutes."""
QUEUE_TOKENS = 2_000, 20_000


def odds_of(chance: random.Random) -> Odds:
    """Most worlds are kind in most respects, so that each unkindness also acts alone."""

    def perhaps(*values: float) -> float:
        return chance.choice(values) if chance.random() < 0.3 else 0.0

    return Odds(
        store=StoreOdds(
            away=perhaps(0.02, 0.1), lost=perhaps(0.01, 0.05, 0.2), halved=perhaps(0.05, 0.2),
            echoed=perhaps(0.01, 0.05, 0.2),
        ),
        messages=MessageOdds(double=perhaps(0.1, 0.5), lose=perhaps(0.05, 0.2), shuffle=perhaps(0.3, 1.0)),
        answers=Answers(
            refuse=perhaps(0.1, 0.3), spoil=perhaps(0.1, 0.3), part=perhaps(0.2, 0.5), hang=perhaps(0.05, 0.15)
        ),
    )  # fmt: skip


class Seed(Scene):
    """Builds and runs one seed's world on a database that is its own."""

    faults_until_s = FAULTS_UNTIL_S
    at_rest_by_s = 400.0

    def __init__(self, client: StoreClient, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.pools = chance.choice([("p",), ("p", "q")])
        self.unstructured = frozenset(pool for pool in self.pools if chance.random() < 0.2)
        super().__init__(
            client, seed, limit=chance.randint(1, 6), odds=odds_of(chance), tells=chance.random() < 0.3,
            shape=Shape(self.pools, self.unstructured, page_max=chance.choice([2, 4, 8, 100])),
            deadline_s=self.at_rest_by_s,
        )  # fmt: skip
        self.prepare()
        give_budgets(self.world, self.pools)
        for _ in range(chance.randint(1, 3)):
            self.bear()
        for number in range(chance.choice([1, 1, 1, 2, 3])):
            job = self.draw_job(f"j{number}")
            told = chance.random() < 0.9  # or its submitter died before it could send the message
            if number:
                self.expect(job)
                self.world.later(chance.uniform(0, 5), partial(self.submit, job, told=told))
            else:
                self.submit(job, told=told)
        self._plan_faults()

    def prepare(self) -> None:
        """What is there before the first worker."""

    def draw_job(self, job_id: str) -> SimJob:
        return a_job(self.chance, job_id, list(self.pools), unstructured=self.unstructured, folder=self.world.folder)

    def catalogue(self, faults: Faults) -> list[Callable[[], object]]:
        """What can happen besides the odds."""
        return faults.catalogue()

    def _plan_faults(self) -> None:
        world, chance, faults, until_s = self.world, self.chance, Faults(self, self.chance), self.faults_until_s
        for _ in range(chance.choice([0, 0, 1, 1, 2, 3])):
            when = chance.uniform(0, until_s) * chance.random()
            world.at(when, chance.choice(self.catalogue(faults)))
        if chance.random() < 0.1:
            world.at(chance.uniform(0, 12), faults.cancel)
        its_own = random.Random(f"revoke {self.seed}")
        if its_own.random() < 0.3:
            for _ in range(its_own.randint(1, 5)):
                world.at(its_own.uniform(0, 8) * its_own.random(), Faults(self, its_own).revoke)
        world.at(until_s, faults.heal)

    def run(self) -> SeedResult:  # type: ignore[override]
        calm = self.world.odds == Odds()
        return super().run(lambda: self.world.now >= self.faults_until_s or (calm and not self.faults))


def batch_odds_of(chance: random.Random) -> BatchOdds:
    """As `odds_of`, at a batch API."""

    def perhaps(*values: float) -> float:
        return chance.choice(values) if chance.random() < 0.4 else 0.0

    return BatchOdds(
        dropped=perhaps(0.1, 0.3), lost=perhaps(0.1, 0.3), late=perhaps(0.1, 0.3), gateway=perhaps(0.1),
        refused=perhaps(0.1, 0.3), unlisted=perhaps(0.5, 1.0), slow=perhaps(0.5, 1.0), expire=perhaps(0.2, 0.6),
        cut=perhaps(0.3, 0.6), partial=perhaps(0.3),
    )  # fmt: skip


class BatchSeed(Seed):
    """A world in which most units go by batches, at accounts that speak OpenAI's verbs or Anthropic's, and in whose
    lists others' batches are as well."""

    faults_until_s = 45.0
    at_rest_by_s = 1200.0

    def prepare(self) -> None:
        world, chance = self.world, random.Random(f"batches {self.seed}")
        self._aside = chance
        if chance.random() < 0.8:
            self.odds = world.odds = replace(self.odds, batches=batch_odds_of(chance))
        world.intervals = INTERVALS
        for pool in self.pools:
            dialect: Dialect = chance.choice(["openai", "anthropic"])
            room = chance.randint(*QUEUE_TOKENS) if chance.random() < 0.3 else None
            account = world.accounts[pool] = BatchAccount(world, pool, dialect, room)
            for _ in range(chance.choice([0, 0, 2, 5])):
                others = {f"someone-else_{n}": {} for n in range(chance.randint(1, 8))}
                world.at(chance.uniform(0, 40), partial(account.begin, "someone-else", others, foreign=True))

    def draw_job(self, job_id: str) -> SimJob:
        roads: list[Road] = ["batch", "batch", "batch", "auto", "online"]
        road = self._aside.choice(roads if self.world.jobs else roads[:-1])
        once = self._aside.random() < 0.15
        if once:
            self.allowed[job_id] = Allowed(errors=frozenset({"outcome_unknown", "malformed"}))
        return a_job(
            self.chance, job_id, list(self.pools), unstructured=self.unstructured, folder=self.world.folder,
            road=road, halved=self.world.accounts, most_items=8, spend="at_most_once" if once else "at_least_once",
        )  # fmt: skip

    def catalogue(self, faults: Faults) -> list[Callable[[], object]]:
        return [*faults.catalogue(), faults.kill, faults.kill, faults.freeze, faults.cancel_batch]
