"""Messages of an earlier job whose id is another's now."""

from __future__ import annotations

from typing import Any

import pytest

from dicast.app.pipeline.call_facts import NextSteps
from tests.judge.desk import Scripted
from tests.ledger.bench import a_job


@pytest.mark.parametrize("remembered", [True, False])
async def test_a_message_of_an_earlier_job_ends_without_a_call(bench: Any, desk: Any, remembered: bool) -> None:
    """Though both jobs have a unit of that place, and the later one is running."""
    provider = Scripted()
    judge = desk(provider)
    old = await bench.started(a_job(dimensions=2))
    if remembered:
        await judge.do(old, 0)
    asked = len(provider.asked)
    bench.redis.flushdb()
    for node in bench.nodes:
        bench.registry.announce(node)
    new = await bench.started(a_job(dimensions=1), units=2)
    assert await judge.do(old, 1) == NextSteps(counts=True)
    assert len(provider.asked) == asked
    assert await judge.results(new) == {}
    assert "calls" not in await judge.counters("j")
    await judge.do(new, 1)
    [result] = (await judge.results(new)).values()
    assert (result["opinion"]["criterion_id"], result["opinion"]["item_id"]) == ("d0", "i1")
