"""A worker that can take work and cannot report it."""

import asyncio

import pytest
from redis.exceptions import ConnectionError as StoreConnectionError
from redis.exceptions import ResponseError

from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import Recorded, UnitResult
from dicast.app.pipeline.record import REMEMBERED_S, Recorder, Spool
from dicast.workers.admission.concurrency import FAILURES, Suspension

RESULTS = [UnitResult(0, 1, b"{}", True)]


class Ledger:
    def __init__(self, *errors):
        self.errors = list(errors)

    async def record(self, *_):
        if self.errors:
            raise self.errors.pop(0)
        return Recorded(0, False, False, [])


async def test_reports_that_fail_for_good_bench_the_worker(tmp_path):
    """Each unit that it takes is paid for, and lost to others."""
    bench = Suspension()
    recorder = Recorder(Ledger(*[ResponseError("ERR bug in a script")] * FAILURES), Spool(tmp_path, "n", "w"), bench)
    for _ in range(FAILURES):
        assert bench.reason == ""
        with pytest.raises(ResponseError):
            await recorder.store(PageRef("j", "n", 0, 0), {}, RESULTS)
    assert bench.reason == "no report arrives: ERR bug in a script"


async def test_a_store_that_is_away_benches_nobody(tmp_path):
    bench = Suspension()
    recorder = Recorder(Ledger(*[StoreConnectionError("away")] * 3), Spool(tmp_path, "n", "w"), bench)
    assert (await recorder.store(PageRef("j", "n", 0, 0), {}, RESULTS)).remaining == 0
    assert bench.reason == ""


async def test_what_was_recorded_lately_is_told_again_and_what_is_older_is_not(tmp_path, monkeypatch):
    """A store that comes back may have lost the last seconds of its writes."""
    told, ref = [], PageRef("j", "n", 0, 0)

    class Remembering(Ledger):
        async def record(self, _, counters, results):
            told.append(results[0].position)
            return Recorded(0, False, False, [])

        async def open_pages(self):
            return [ref]

    recorder, clock = Recorder(Remembering(), Spool(tmp_path, "n", "w")), [1000.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock[0])
    for position in range(4):
        await recorder.store(ref, {}, [UnitResult(position, 1, b"{}", True)])
        clock[0] += 0.4 * REMEMBERED_S
    told.clear()
    async for _ in recorder.recall():
        pass
    assert told == [1, 2, 3], "the first was older than that when the last was recorded"
