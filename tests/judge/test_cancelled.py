"""Units of a cancelled job end although nobody takes their messages, and without a call."""

from __future__ import annotations

from typing import Any

import pytest

from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import Deferral, Due, JobState, MessageId
from dicast.app.pipeline.housekeeping import CancelledUnits, UnattendedJobs
from tests.judge.desk import Scripted
from tests.ledger.bench import a_job, claim


class Outbox:
    """Messages that nobody takes."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    async def gather(self, ref: PageRef) -> None:
        self.sent.append(ref)

    async def finish(self, job_id: str) -> None:
        self.sent.append(job_id)


@pytest.mark.parametrize("batched", [False, True])
async def test_units_that_nobody_takes_end_when_their_job_is_cancelled(bench: Any, desk: Any, batched: bool) -> None:
    """They waited in the queue of a pool whose labels no worker has, for as long as nobody had them."""
    ref = await bench.started(a_job(items=20), batched=batched, units=40)
    judge, messages = desk(Scripted()), Outbox()
    await judge.do(ref, "b0" if batched else 0)
    calls = len(judge.provider.asked)
    bench.client.cancel("j")
    sweeps = UnattendedJobs(bench.one, messages, None, CancelledUnits(bench.one, judge.judge, messages))  # type: ignore[arg-type]
    await sweeps.look_after("j")
    assert messages.sent == [ref]
    ended = await judge.results(ref)
    assert len(ended) == 40
    assert {found["error"]["kind"] for found in ended.values() if "error" in found} == {"cancelled"}
    assert len(judge.provider.asked) == calls
    assert await bench.one.close_page(ref, 1) == (True, False)
    assert bench.client.status("j").state is JobState.FINISHING


async def test_units_in_living_hands_are_left_to_them_and_those_that_wait_for_their_time_are_not(
    bench: Any, desk: Any
) -> None:
    ref = await bench.started()
    judge, messages = desk(Scripted()), Outbox()
    await claim(bench.two, ref, 0)
    waits = await claim(bench.one, ref, 1)
    await bench.one.defer(ref, {}, [Deferral(1, waits.fence, 1, 0)], [Due(MessageId(1), 600_000)])
    bench.client.cancel("j")
    cancelled = CancelledUnits(bench.one, judge.judge, messages)  # type: ignore[arg-type]
    await cancelled.end(await bench.one.job("j"))
    assert sorted(await judge.results(ref)) == [1, 2, 3]
    assert await bench.one.close_page(ref, 1) == (False, False), "a call is open"
    bench.kill(1)
    await cancelled.end(await bench.one.job("j"))
    assert sorted(await judge.results(ref)) == [0, 1, 2, 3]
    assert judge.provider.asked == []
