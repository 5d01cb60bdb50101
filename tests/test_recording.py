"""A worker that can take work and cannot report it."""

import pytest
from redis.exceptions import ConnectionError as StoreConnectionError
from redis.exceptions import ResponseError

from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import Recorded, UnitResult
from dicast.app.pipeline.record import Recorder
from dicast.app.pipeline.spool import Spool
from dicast.workers.admission.suspension import FAILURES, Suspension

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
    assert (await recorder.store(PageRef("j", "n", 0, 0), {}, RESULTS)).left == 0
    assert bench.reason == ""
