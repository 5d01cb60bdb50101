"""One world with its nodes and jobs, from the first message to rest, and the verdict."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

import dicast.app.ledger.batches
import dicast.app.ledger.client
import dicast.app.reports.finishing
from dicast.app.ledger.batches import BatchRecord, BatchStage, list_batches
from dicast.app.ledger.client import LedgerClient
from dicast.app.ledger.keys import LedgerKeys
from dicast.app.ledger.records import JobState
from dicast.workers.store.connection import StoreClient
from lab.chaos.virtual import books
from lab.chaos.virtual.books import Allowed
from lab.chaos.virtual.broker import Message
from lab.chaos.virtual.budgets import check_budgets
from lab.chaos.virtual.jobs import SimJob
from lab.chaos.virtual.node import Shape, VirtualNode
from lab.chaos.virtual.wire import Direct
from lab.chaos.virtual.world import Odds, World
from tests.workers.pools import parameters

REST_S = 2.0
KIND = Odds()
MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class SeedResult:
    seed: int
    violations: list[str]
    virtual_s: float
    commands: int
    faults: str
    trace: list[str]
    batch_kills: Counter[str]
    """At which steps of a batch the worker that held it was killed, and how often."""


class Scene:
    """Built on a database that is its own. `deadline_s`: by then everything must be at rest."""

    def __init__(
        self, client: StoreClient, seed: int, *, limit: int, shape: Shape, odds: Odds = KIND, tells: bool = False,
        deadline_s: float = 400.0,
    ) -> None:  # fmt: skip
        client.flushdb()
        random.seed(seed)  # the product's own jitter
        numbers = itertools.count(1)
        dicast.app.ledger.client.new_incarnation = lambda: f"{next(numbers):06}"
        dicast.app.ledger.batches.new_name = lambda: f"{next(numbers):012}"
        # Another process would take a second of this machine's time: longer than all the rest of a world.
        dicast.app.reports.finishing._in_own_process = lambda folder: "nothing is computed in virtual time"
        folder = tempfile.mkdtemp(prefix="dicast-virtual-", dir=MEMORY if MEMORY.is_dir() else None)
        self.seed, self.shape, self.deadline_s = seed, shape, deadline_s
        self.world = World(client, seed, limit=limit, odds=odds, folder=Path(folder), tells=tells)
        self.odds, self.faults, self.batch_kills = odds, list[str](), Counter[str]()
        self.allowed: dict[str, Allowed] = {}
        self._rests_since: float | None = None
        self.unequal = False
        """Whether a fault has been that lets the pools' own counters differ from the provider's."""
        self.caller = LedgerClient(Direct(self.world), self.world.keys)
        client.hset(self.world.keys.epoch, "number", 1)  # a store that is in use already
        for pool in shape.pools:
            self.govern(pool)

    # ------------------------------------------------------------------ what is in it
    def govern(self, pool: str, **more: Any) -> None:
        """Put a pool's parameters in force, as a decision would."""
        client, key = self.world.client, self.world.keys.governor(pool)
        params: Any = parameters(self.world.limit, version=int(client.hget(key, "version") or 0) + 1, **more)
        client.hset(key, mapping={"parameters": orjson.dumps(params), "version": params.version})

    def bear(self, shape: Shape | None = None) -> VirtualNode:
        """A new worker."""
        node = VirtualNode(self.world, f"n{len(self.world.nodes) + 1}", shape or self.shape)
        self.world.nodes[node.name] = node
        return node

    def living(self) -> list[VirtualNode]:
        return [node for node in self.world.nodes.values() if node.alive]

    def expect(self, job: SimJob) -> None:
        """This job is submitted now or later, and will have ended."""
        self.world.jobs[job.id] = self.world.texts[job.text] = job
        self.allowed.setdefault(job.id, Allowed())

    def submit(self, job: SimJob, *, told: bool = True) -> None:
        """As a caller does; one that dies before it has `told` anybody leaves that to the sweeper."""
        self.expect(job)
        job.submit(self.caller)
        if told:
            self.world.broker.publish("control", Message("start", (job.id,)))

    def resume(self, job_id: str) -> None:
        """As a caller does."""
        self.note(f"resume {job_id}")
        self.caller.resume(job_id)
        self.world.announced.pop(job_id, None)
        self.world.completions.pop(job_id, None)
        self.world.broker.publish("control", Message("start", (job_id,)))

    def note(self, text: str) -> None:
        self.faults.append(f"{text} at {self.world.now:.1f}")
        self.world.tell(self.faults[-1])

    def count_batches_of(self, victim: VirtualNode) -> None:
        """Count at which steps the batches are that a node holds which is about to be killed."""
        ledger, client = LedgerKeys(self.world.keys), self.world.client
        for batch in list_batches(client, ledger):
            if client.hget(ledger.batch(batch.name), "holder") == victim.facts.id:
                self.batch_kills[self._step_of(batch)] += 1

    def _step_of(self, batch: BatchRecord) -> str:
        if batch.stage is BatchStage.COLLECTING:
            return "while it is formed"
        account = self.world.accounts[batch.pool]
        known = [b for b in account.batches.values() if b.identity == batch.identity]
        if batch.stage is BatchStage.SEALED:
            if not batch.sending_at:
                return "before it is sent"
            return "created, not recorded" if known else "being sent, not created"
        return "results fetched and settled" if any(b.is_over for b in known) else "asked how it is"

    # ------------------------------------------------------------------ the run
    def run(self, ready: Callable[[], bool] = lambda: True) -> SeedResult:
        """Until all is at rest and `ready`, or the deadline. Without Python's collector, which would end what a killed
        node has left at a moment of its own, so that no two runs were the same."""
        collects = gc.isenabled()
        gc.disable()
        try:
            return self._run(ready)
        finally:
            if collects:
                gc.enable()

    def _run(self, ready: Callable[[], bool]) -> SeedResult:
        world = self.world
        loops = lambda: [n.loop for n in world.nodes.values() if n.alive and not n.frozen]  # noqa: E731
        if not world.run(loops, lambda: ready() and self._rests(), self.deadline_s):
            world.fail(f"one outcome, at rest, in time: not at rest after {self.deadline_s:.0f} s: {self._left()}")
        else:
            self.judge()
        for node in self.living():
            for task in node.tasks:
                if task.done():
                    world.fail(f"bounded: a part of {node.name} ended: {task.exception()!r}")
        faults = ", ".join([*self.odds.told(), *self.faults]) or "none"
        verdict = SeedResult(
            self.seed, world.violations, world.now, world.commands, faults, list(world.trace), self.batch_kills
        )
        self.close()
        return verdict

    def close(self) -> None:
        for node in self.world.nodes.values():
            node.alive = False
            for pending in asyncio.all_tasks(node.loop):
                pending._log_destroy_pending = False  # type: ignore[attr-defined]
                _throw_away(pending.get_coro())
            node.loop._ready.clear()  # type: ignore[attr-defined]
            node.loop._scheduled.clear()  # type: ignore[attr-defined]
            node.loop.close()
            node.spool.die()
        self.world.server.close()
        shutil.rmtree(self.world.folder, ignore_errors=True)

    def state(self, job_id: str) -> JobState | None:
        found = self.world.client.hget(LedgerKeys(self.world.keys).job(job_id), "state")
        return JobState(found) if found else None

    def at_rest(self) -> bool:
        if self.world.open or any(n.frozen or n.judging for n in self.living()):
            return False
        ended = all((state := self.state(job)) is not None and state.ended for job in self.world.jobs)
        return ended and not any(self._left().values())

    def _rests(self) -> bool:
        """At rest for a while: a trip to the store, seen by nobody, may be under way at first."""
        if not self.at_rest():
            self._rests_since = None
            return False
        if self._rests_since is None:
            self._rests_since = self.world.now
        return self.world.now - self._rests_since >= REST_S

    def _left(self) -> dict[str, Any]:
        world, k = self.world, self.world.keys
        ledger = LedgerKeys(k)
        states = {job: self.state(job) for job in world.jobs}
        return {
            "jobs": {job: state for job, state in states.items() if state is None or not state.ended},
            "leases": world.client.zrange(k.leases, 0, -1),
            "holders": world.client.hkeys(k.holders),
            "open": world.client.hgetall(k.open),
            "assigned": world.client.hgetall(k.assigned),
            "pages": world.client.keys(k.at("job") + ":*:page*"),
            "batches": [*world.client.zrange(ledger.batches, 0, -1), *world.client.keys(ledger.batch("@*"))],
            "at the provider": [batch.id for batch in books.own_batches(world) if not batch.is_over],
            "outbox": world.client.smembers(ledger.outbox),
            "unfinished": world.client.zrange(ledger.unfinished, 0, -1),
            "job limits": world.client.hgetall(k.job_limits),
            "frozen": [n.name for n in self.living() if n.frozen],
            "calls": list(world.open),
            "judging": [n.name for n in self.living() if n.judging],
            "in hand": [n.name for n in self.living() if world.broker.unacked[n.name]],
            "untold": [n.name for n in self.living() if any(gate._give_back for gate in n.gates.values())],
            "spooled": [str(path) for path in (world.folder / "spool").rglob("*.json")],
        }

    def judge(self) -> None:
        world = self.world
        for found in books.check_batches(world):
            world.fail(found)
        for job in world.jobs.values():
            for found in books.check(world, job, self.allowed[job.id]):
                world.fail(f"{found} (job {job.id})" if len(world.jobs) > 1 else found)
        for found in check_budgets(world):
            world.fail(found)
        died = world.excused or world.silent or not all(node.alive for node in world.nodes.values())
        if not self.unequal and not died:
            for found in books.check_pools(world, self.shape.pools):
                world.fail(found)


def _throw_away(coroutine: Any) -> None:
    """End a coroutine here, and not when Python collects it, which may be in the midst of something else. Its clean-up
    cannot be finished, for its loop turns no more."""
    tell, sys.unraisablehook = sys.unraisablehook, lambda _: None  # of what its clean-up began and nobody waits for
    try:
        while coroutine.cr_frame is not None:  # each time ends the wait at which its clean-up stands
            with contextlib.suppress(Exception):
                coroutine.close()
    finally:
        sys.unraisablehook = tell
