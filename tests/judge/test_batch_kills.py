"""Workers that die again and again, at any step of a batch, by the invoice of the provider.

`BATCH_KILL_SEEDS=100 pytest tests/judge/test_batch_kills.py -o log_cli=true -o log_cli_level=INFO` counts the deaths.
"""

from __future__ import annotations

import logging
import os
from random import Random
from typing import Any

import pytest

from dicast.app.ledger.batches import LaneRef
from dicast.app.providers.batches import BatchState
from dicast.workers.store.connection import connect
from tests.judge.desk import Scripted
from tests.judge.shelf import Clock, Killed, Road, Shelf
from tests.judge.test_batch_road import STEPS, opened
from tests.ledger.bench import a_job

logger = logging.getLogger(__name__)

SEEDS = int(os.environ.get("BATCH_KILL_SEEDS", "6"))
UNITS, DEATHS = 6, 12
EVERY_STEP = [*STEPS, "while it is formed", "while it is sent"]


class Mortal(Shelf):
    """Dies also while requests are made: when units are claimed, and when the batch is sent."""

    sending = False

    def body(self, request: Any) -> bytes:
        self.dies("while it is sent" if self.sending else "while it is formed")
        return super().body(request)

    async def create(self, requests: Any, identity: str) -> Any:
        self.sending = True
        try:
            return await super().create(requests, identity)
        finally:
            self.sending = False


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_workers_die_again_and_again(bench: Any, desk: Any, redis_url: str, seed: int) -> None:
    chance, shelf, clock, deaths = Random(seed), Mortal(), Clock(), 0
    ref = await opened(bench, a_job(items=UNITS, dimensions=1), units=UNITS)
    road = Road(bench, desk(Scripted()), shelf, clock)
    lane, k = LaneRef(ref.job, ref.incarnation, ref.lane), road.store.keys
    await road.store.schedule(lane, 0)
    for _ in range(400):
        if bench.client.status("j").done == UNITS and not await road.store.all():
            break
        shelf.kill = chance.choice(EVERY_STEP) if deaths < DEATHS else ""
        for batch_id, kept in shelf.batches.items():
            if not kept.status.state.is_over and chance.random() < 0.3:
                made = chance.choice([None, None, chance.randrange(UNITS)])
                state = BatchState.ENDED if made is None else chance.choice([BatchState.EXPIRED, BatchState.CANCELLED])
                shelf.end(batch_id, state, min(made, len(kept.requests)) if made is not None else None)
        await road.due()
        try:
            await road.batches.step_once()
        except Killed:
            deaths += 1
            with connect(redis_url) as store:
                for batch in await road.store.all():
                    store.hdel(k.batch(batch.name), "holder")
        clock.at += chance.choice([0.0, 5.0, 200.0])
        await road.store.schedule(lane, 0)  # as the housekeeping does when it finds units that stand still
    counters = bench.client.status("j").counters
    logger.info("seed %d: %d deaths, %d batches", seed, deaths, len(shelf.batches))
    assert (counters["scored"], counters["failed"]) == (UNITS, 0)
    assert sorted(shelf.paid.values()) == [1] * UNITS, "each question is billed once"
    assert all(kept.status.state.is_over for kept in shelf.batches.values()), "no batch is left behind"
    assert road.messages.gathered == [ref]
