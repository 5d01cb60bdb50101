"""What becomes of a message while the store loses answers, or refuses something for good."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import ConnectionError as StoreConnectionError
from redis.exceptions import ResponseError

from dicast.app.domain.opinion import FailureKind
from dicast.app.domain.plan import Intervals
from dicast.app.ledger.records import ClaimVerdict
from dicast.app.providers.base import ProviderFailure
from tests.judge.desk import Scripted, failing, good
from tests.ledger.bench import a_job, claim

Script = Callable[..., Any]


def replaced(desk: Any, name: str, make: Callable[[Script], Script]) -> None:
    """A script of the ledger's is run as `make` says."""
    scripts = desk.bench.one._scripts
    scripts[name] = make(scripts[name])


def losing_answers(times: int) -> Callable[[Script], Script]:
    def make(script: Script) -> Script:
        left = [times]

        async def run(**command: Any) -> Any:
            answer = await script(**command)
            left[0] -= 1
            if left[0] >= 0:
                raise StoreConnectionError
            return answer

        return run

    return make


@pytest.mark.parametrize("lost", ["claim", "record", "defer"])
async def test_answers_of_the_store_that_are_lost_cost_no_call_and_no_count(bench: Any, desk: Any, lost: str) -> None:
    ref = await bench.started(a_job(spend="at_most_once"))
    away = failing(ProviderFailure(FailureKind.SERVER, "503", status_code=503))
    judge = desk(Scripted(away, good))
    replaced(judge, lost, losing_answers(3))
    await judge.again(ref, 0, 2)
    counters = bench.client.status("j").counters
    assert (counters["calls"], counters["retries"], counters["scored"]) == (2, 1, 1)
    assert counters["possible_double_charges"] == 0
    assert len(judge.provider.asked) == 2


async def test_a_result_that_no_script_can_take_ends_its_unit_with_an_error(bench: Any, desk: Any) -> None:
    """It was tried for ever, and hung the unit, its job, `cancel` and the worker's end."""
    ref = await bench.started()
    judge = desk(Scripted(), max_attempts=1)

    def refusing(script: Script) -> Script:
        async def run(keys: list[str], args: list[Any]) -> Any:
            if b'"error"' not in b"".join(a for a in args if isinstance(a, bytes)).replace(b"\\", b""):
                raise ResponseError("ERR user_script:30: attempt to index a nil value")
            return await script(keys=keys, args=args)

        return run

    replaced(judge, "record", refusing)
    assert (await asyncio.wait_for(judge.do(ref, 0), 10)).counts
    (result,) = (await judge.results(ref)).values()
    assert result["error"]["kind"] == "internal"
    assert bench.client.status("j").counters["calls"] == 1


@pytest.mark.parametrize("script", ["claim", "record"])
async def test_a_message_ends_though_nothing_can_be_written(bench: Any, desk: Any, script: str) -> None:
    ref = await bench.started()
    judge = desk(Scripted(), max_attempts=1)

    def refusing(_: Script) -> Script:
        async def run(**_: Any) -> Any:
            raise ResponseError("ERR user_script:8: attempt to compare nil with number")

        return run

    replaced(judge, script, refusing)
    with pytest.raises(ResponseError):
        await asyncio.wait_for(judge.do(ref, 0), 10)
    assert not judge.judge.works_on(ref, 0)
    assert judge.leases[0].expires_at > 0


class Slow:
    """A script that is run, and answers, or fails, when it may."""

    def __init__(self, error: Exception | None = None) -> None:
        self.run, self.answer, self.error = asyncio.Event(), asyncio.Event(), error

    def __call__(self, script: Script) -> Script:
        async def run(**command: Any) -> Any:
            found = await script(**command)
            self.run.set()
            await self.answer.wait()
            if self.error is not None:
                raise self.error
            return found

        return run


async def test_a_worker_that_stops_during_a_claim_has_claimed_nothing(bench: Any, desk: Any) -> None:
    """Others took it for a call that may have been paid."""
    ref = await bench.started(a_job(spend="at_most_once"))
    judge, slow = desk(Scripted(failing(ProviderFailure(FailureKind.RATE_LIMITED, "429", status_code=429)))), Slow()
    await judge.again(ref, 0, 2)
    await bench.asyncs.hdel(bench.one.keys.page(ref), "w:0")
    replaced(judge, "claim", slow)
    working = asyncio.ensure_future(judge.do(ref, 0))
    await slow.run.wait()
    working.cancel()
    await asyncio.sleep(0)
    slow.answer.set()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert len(judge.provider.asked) == 2
    bench.kill(0)
    assert [token.position for _, token in await bench.two.take_due()] == [0]
    await bench.asyncs.hdel(bench.one.keys.page(ref), "w:0")
    heir = await claim(bench.two, ref, 0)
    assert (heir.verdict, heir.calls, heir.requeues) == (ClaimVerdict.RUN, 3, 2)
    assert bench.client.status("j").counters["possible_double_charges"] == 0


@pytest.mark.parametrize("error", [None, ResponseError("ERR user_script:8: attempt to compare nil with number")])
async def test_a_worker_that_stops_waits_for_no_claim_for_long(bench: Any, desk: Any, error: Exception | None) -> None:
    ref = await bench.started()
    judge, slow = desk(Scripted()), Slow(error)
    replaced(judge, "claim", slow)
    bench.one.intervals = Intervals(stopping_s=0.01)
    working = asyncio.ensure_future(judge.do(ref, 0))
    await slow.run.wait()
    working.cancel()
    await asyncio.sleep(0)
    if error is not None:
        slow.answer.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(working, 5)
