"""Deadlines do not count what a busy machine takes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import patience
from tests.patience import Stopwatch, scheduling_s


@pytest.mark.parametrize(("stalled_s", "counted_s"), [(0.0, 10.0), (4.0, 6.0), (9.9, 2.0)])
def test_time_in_which_programs_wait_for_a_core_does_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stalled_s: float, counted_s: float
) -> None:
    clock = iter([100.0, 110.0])
    monkeypatch.setattr(patience, "PRESSURE", pressure := tmp_path / "cpu")
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    line = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    pressure.write_text(line.format(7_000_000))
    watch = Stopwatch()
    pressure.write_text(line.format(7_000_000 + int(1e6 * stalled_s)))
    assert watch.s == pytest.approx(counted_s)


@pytest.mark.parametrize("content", [None, "", "some total=much"])
def test_where_nothing_tells_all_time_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
) -> None:
    monkeypatch.setattr(patience, "PRESSURE", pressure := tmp_path / "cpu")
    if content is not None:
        pressure.write_text(content)
    assert patience.stalled_s() == 0.0


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="only Linux tells")
def test_processes_that_share_a_core_wait_for_each_other() -> None:
    (core, *_) = os.sched_getaffinity(0)
    workers = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        for worker in workers:
            os.sched_setaffinity(worker.pid, {core})
        watch = Stopwatch()
        while scheduling_s(worker.pid for worker in workers) < 0.2:
            assert watch.s < 20
            time.sleep(0.05)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert scheduling_s(worker.pid for worker in workers) == 0.0, "they are gone"
