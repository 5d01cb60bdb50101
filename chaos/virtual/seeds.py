"""One seed: a world, a job, a plan of faults, the way back to rest, and the verdict."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import orjson
import redis

import app.gathering
import app.housekeeping
from app.domain.job import EvaluationJob
from app.domain.plan import lanes
from app.ledger.client import JobState, LedgerClient
from app.ledger.keys import LedgerKeys
from chaos.virtual.node import Node
from chaos.virtual.provider import CALL_TIMEOUT_S
from chaos.virtual.world import Message, Odds, World
from tests.workers.pools import parameters

FAULTS_UNTIL_S = 15.0
DEADLINE_S = 400.0
HOUSEKEEPING_EVERY_S = 1.0
JOB = "j"


@dataclass(frozen=True)
class Verdict:
    seed: int
    violations: list[str]
    virtual_s: float
    commands: int
    faults: str
    trace: list[str]


def odds_of(chance: random.Random) -> Odds:
    """Most worlds are kind in most respects, so that each unkindness also acts alone."""

    def perhaps(*values: float) -> float:
        return chance.choice(values) if chance.random() < 0.3 else 0.0

    return Odds(
        double=perhaps(0.1, 0.5),
        lose=perhaps(0.05, 0.2),
        shuffle=perhaps(0.3, 1.0),
        store_error=perhaps(0.02, 0.1),
        answer_lost=perhaps(0.02, 0.1),
        refuse=perhaps(0.1, 0.3),
        spoil=perhaps(0.1, 0.3),
        hang=perhaps(0.05, 0.15),
    )


def a_job(chance: random.Random, pools: list[str]) -> EvaluationJob:
    agents, dimensions, items = chance.randint(1, 3), chance.randint(1, 3), chance.randint(1, 5)
    return EvaluationJob.model_validate(
        {
            "id": JOB,
            "items": [{"id": f"i{n}", "text": f"ITEM {n};"} for n in range(items)],
            "agents": [
                {"name": f"a{n}", "pool": chance.choice(pools), "persona": f"AGENT {n};"} for n in range(agents)
            ],
            "dimensions": [{"id": f"d{n}", "instructions": f"DIM {n};"} for n in range(dimensions)],
        }
    )


class Seed:
    """Builds and runs one seed's world on a database that is its own."""

    def __init__(self, client: redis.Redis, seed: int) -> None:
        client.flushdb()
        self.seed, self.chance = seed, random.Random(seed)
        random.seed(seed)  # the product's own jitter
        chance = self.chance
        self.world = World(client, chance, limit=chance.randint(1, 6), odds=odds_of(chance))
        app.gathering.files = self.world  # type: ignore[assignment]
        app.housekeeping.DUE_EVERY_S = HOUSEKEEPING_EVERY_S
        self.pools = chance.choice([["p"], ["p", "q"]])
        odds = self.world.odds
        self._answers_are_good = not odds.spoil and not odds.hang
        self.shape = {"attempts": 30, "page_max": chance.choice([2, 4, 8, 100])}
        self.faults: list[str] = []
        for pool in self.pools:
            params = parameters(self.world.limit)
            client.hset(
                self.world.keys.governor(pool), mapping={"parameters": orjson.dumps(params), "version": params.version}
            )
        self._born = 0
        for _ in range(chance.randint(1, 3)):
            self._bear()
        self._submit()
        self._plan_faults()

    def _bear(self) -> Node:
        self._born += 1
        node = Node(self.world, f"n{self._born}", self.pools, self.shape)
        self.world.nodes[node.name] = node
        return node

    def living(self) -> list[Node]:
        return [node for node in self.world.nodes.values() if node.alive]

    def _submit(self) -> None:
        self.job = a_job(self.chance, self.pools)
        batching = self.chance.random() < 0.3
        plan = lanes(
            [(a.pool,) for a in self.job.agents], len(self.job.dimensions), 1, [batching] * len(self.job.agents)
        )
        self.world.lanes = plan
        self.units = len(self.job.items) * len(self.job.agents) * len(self.job.dimensions)
        client = LedgerClient(self.world.client, self.world.keys)
        submit = client._submit
        client._submit = lambda keys, args: submit(keys=keys, args=[self.world.now_ms, *args[1:]])
        client._cancel_script, client._cancel = client._cancel, self._dated(client._cancel)  # type: ignore[attr-defined]
        self.client = client
        client.submit(self.job, plan, self.units, {})
        if self.chance.random() < 0.9:  # or its submitter died before it could send the message
            self.world.publish("control", Message("start", (JOB,)))

    def _dated(self, script: Any) -> Any:
        return lambda keys, args: script(keys=keys, args=[self.world.now_ms, *args[1:]])

    def _plan_faults(self) -> None:
        world, chance = self.world, self.chance
        for _ in range(chance.choice([0, 0, 1, 1, 2, 3])):
            when = chance.uniform(0, FAULTS_UNTIL_S) * chance.random()
            act = chance.choice([self._kill, self._kill, self._freeze, self._cut, self._double_all])
            world.at(when, act)
        if chance.random() < 0.15:
            world.at(chance.uniform(0, 12), self._cancel)
        world.at(FAULTS_UNTIL_S, self._heal)

    def _note(self, text: str) -> None:
        self.faults.append(f"{text} at {self.world.now:.1f}")
        self.world.tell(self.faults[-1])

    def _kill(self) -> None:
        if self.living():
            victim = self.chance.choice(self.living())
            self._note(f"kill {victim.name}")
            victim.kill()
            if self.chance.random() < 0.5 or not self.living():
                self.world.later(self.chance.uniform(0.5, 10), self._bear)

    def _freeze(self) -> None:
        candidates = [n for n in self.living() if not n.frozen]
        if candidates:
            victim, seconds = self.chance.choice(candidates), self.chance.choice([1, 5, 16, 20, 60])
            self._note(f"freeze {victim.name} for {seconds}")
            victim.frozen = True

            def thaw() -> None:
                victim.frozen = False
                if seconds >= CALL_TIMEOUT_S:  # the deadlines of its calls are over, though answers may have come
                    victim.excuse()
                self.world.tell(f"thaw {victim.name}")

            self.world.later(seconds, thaw)

    def _cut(self) -> None:
        if self.living():
            victim, seconds = self.chance.choice(self.living()), self.chance.choice([1, 5, 18])
            self._note(f"cut {victim.name} off for {seconds}")
            victim.cut_until = self.world.now + seconds

    def _double_all(self) -> None:
        self._note("all waiting messages twice")
        for waiting in self.world.queues.values():
            waiting.extend(list(waiting))

    def _cancel(self) -> None:
        self._note("cancel")
        self.client.cancel(JOB)

    def _heal(self) -> None:
        """From now on nothing new goes wrong; somebody is there."""
        self.world.odds = Odds()
        if not [n for n in self.living() if not n.frozen]:
            self._bear()

    # ------------------------------------------------------------------ the run
    def run(self) -> Verdict:
        world = self.world
        loops = lambda: [n.loop for n in world.nodes.values() if n.alive and not n.frozen]  # noqa: E731
        at_rest = world.run(loops, self._at_rest, DEADLINE_S)
        if not at_rest:
            world.fail(f"I1 I6 I10: not at rest after {DEADLINE_S:.0f} s: {self._left()}")
        else:
            self._judge()
        for node in self.living():
            for task in node.tasks:
                if task.done():
                    world.fail(f"I11: a part of {node.name} ended: {task.exception()!r}")
        verdict = Verdict(
            self.seed, world.violations, world.now, world.commands, ", ".join(self.faults) or "none", list(world.trace)
        )
        for node in world.nodes.values():
            for pending in asyncio.all_tasks(node.loop):
                pending._log_destroy_pending = False  # type: ignore[attr-defined]
            node.loop._ready.clear()  # type: ignore[attr-defined]
            node.loop.close()
        return verdict

    def _at_rest(self) -> bool:
        world = self.world
        if world.now < FAULTS_UNTIL_S and (self.faults or world.odds != Odds()):
            return False
        return self._ended() and not any(self._left().values())

    def _ended(self) -> bool:
        return JobState(self.world.client.hget(LedgerKeys(self.world.keys).job(JOB), "state")).ended

    def _left(self) -> dict[str, Any]:
        world, k = self.world, self.world.keys
        ledger = LedgerKeys(k)
        return {
            "state": None if self._ended() else world.client.hgetall(ledger.job(JOB)),
            "leases": world.client.zrange(k.leases, 0, -1),
            "holders": world.client.hkeys(k.holders),
            "open": world.client.hgetall(k.open),
            "pages": world.client.smembers(ledger.pages(JOB)),
            "outbox": world.client.smembers(ledger.outbox),
            "unfinished": world.client.zrange(ledger.unfinished, 0, -1),
            "frozen": [n.name for n in self.living() if n.frozen],
            "calls": list(world.open),
            "judging": [n.name for n in self.living() if n.judging],
        }

    def _judge(self) -> None:
        world = self.world
        record = world.client.hgetall(LedgerKeys(world.keys).job(JOB))
        cancelled = record["state"] == JobState.CANCELLED
        opinions = [o for found, _ in world.pages.values() for o in found]
        errors = [e for _, found in world.pages.values() for e in found]
        places = Counter((o.item_id, o.judge, o.criterion_id) for o in opinions)
        if twice := [p for p, n in places.items() if n > 1]:
            world.fail(f"I1: two opinions of {twice[:3]}")
        if not cancelled and len(places) != self.units:
            world.fail(f"I1: {len(places)} opinions for {self.units} units")
        if len(errors) != sum(o.score is None for o in opinions):
            world.fail("I1: errors and opinions without a score differ")
        if cancelled and "cancel" not in " ".join(self.faults):
            world.fail("I1: cancelled by nobody")
        if self._answers_are_good and not self.faults and any(o.attempts > 1 for o in opinions if o.score is not None):
            world.fail("I7: a refusal, which is the pool's fault, has spent an attempt")
        lost = [e for e in errors if e.kind == "lost"]
        if errors and not cancelled and (len(lost) < len(errors) or len(self.faults) < 3):
            world.fail(f"I1: {len(errors)} units failed: {errors[0].message}")
        if int(record.get("done", 0)) != len(opinions):
            world.fail(f"I15: done is {record.get('done')} for {len(opinions)} opinions")
        # A node may die between completing and telling the simulation of it.
        if world.completions[JOB] > 1:
            world.fail(f"I2: completed {world.completions[JOB]} times")
        if JOB not in world.announced:
            world.fail("I2: the completion was not announced")
        for unit, paid in world.good.items():
            if paid > 1 + world.excused[unit]:
                world.fail(f"I7: unit {unit} was paid {paid} times, {world.excused[unit]} excused")
