"""One seed: a world, its jobs, a plan of faults, the way back to rest, and the verdict."""

from __future__ import annotations

import random
from functools import partial

from dicast.workers.store.connection import StoreClient
from lab.chaos.virtual.broker import MessageOdds
from lab.chaos.virtual.budgets import give_budgets
from lab.chaos.virtual.fates import StoreOdds
from lab.chaos.virtual.faults import Faults
from lab.chaos.virtual.jobs import a_job
from lab.chaos.virtual.node import Shape
from lab.chaos.virtual.scene import Scene, SeedResult
from lab.chaos.virtual.world import Answers, Odds

__all__ = ["Seed", "SeedResult"]

FAULTS_UNTIL_S = 15.0


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

    def __init__(self, client: StoreClient, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        pools = chance.choice([("p",), ("p", "q")])
        unstructured = frozenset(pool for pool in pools if chance.random() < 0.2)
        super().__init__(
            client, seed, limit=chance.randint(1, 6), odds=odds_of(chance), tells=chance.random() < 0.3,
            shape=Shape(pools, unstructured, page_max=chance.choice([2, 4, 8, 100])),
        )  # fmt: skip
        give_budgets(self.world, pools)
        for _ in range(chance.randint(1, 3)):
            self.bear()
        for number in range(chance.choice([1, 1, 1, 2, 3])):
            job = a_job(chance, f"j{number}", list(pools), unstructured=unstructured, folder=self.world.folder)
            told = chance.random() < 0.9  # or its submitter died before it could send the message
            if number:
                self.expect(job)
                self.world.later(chance.uniform(0, 5), partial(self.submit, job, told=told))
            else:
                self.submit(job, told=told)
        self._plan_faults()

    def _plan_faults(self) -> None:
        world, chance, faults = self.world, self.chance, Faults(self, self.chance)
        for _ in range(chance.choice([0, 0, 1, 1, 2, 3])):
            when = chance.uniform(0, FAULTS_UNTIL_S) * chance.random()
            world.at(when, chance.choice(faults.catalogue()))
        if chance.random() < 0.1:
            world.at(chance.uniform(0, 12), faults.cancel)
        its_own = random.Random(f"revoke {self.seed}")
        if its_own.random() < 0.3:
            for _ in range(its_own.randint(1, 5)):
                world.at(its_own.uniform(0, 8) * its_own.random(), Faults(self, its_own).revoke)
        world.at(FAULTS_UNTIL_S, faults.heal)

    def run(self) -> SeedResult:  # type: ignore[override]
        calm = self.world.odds == Odds()
        return super().run(lambda: self.world.now >= FAULTS_UNTIL_S or (calm and not self.faults))
