"""The measurement of the batch road, in small: every figure is there, and the invoice is that of one batch."""

from __future__ import annotations

import pytest

from lab.bench.batches import CASES, sized
from lab.bench.single import SINGLE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_a_small_job_is_measured() -> None:
    figures = sized(200)
    assert figures["batches"] == 1
    assert 0 < figures["the first is handed over after, s"] < figures["all results after, s"]
    assert 50 < figures["worker's peak with the report, MB"] < 250
    assert figures["units/s"] > 0
    assert CASES.keys() <= SINGLE.keys()
