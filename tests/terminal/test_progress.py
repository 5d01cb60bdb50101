from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from dicast.app.cli.following import RATE_UNITS, RATE_WINDOW_S, JobProgress, Rate, elapsed, pace, wrapped
from dicast.app.ledger.records import JobState
from tests.terminal.building import sight


def rate_of(*seen: tuple[float, int]) -> Rate:
    rate = Rate()
    for now_s, done in seen:
        rate.add(now_s, done)
    return rate


def test_no_rate_before_anything_is_done() -> None:
    assert rate_of((0, 0), (5, 0)).per_s(5) is None


def test_units_done_before_the_first_look_do_not_count() -> None:
    assert rate_of((100, 5000), (110, 5010)).per_s(110) == 1.0


def test_a_steady_job_has_its_rate() -> None:
    rate = rate_of(*((n / 4, n) for n in range(400)))
    assert rate.per_s(399 / 4) == pytest.approx(4.0)


def test_a_slow_job_has_a_rate_from_its_few_units() -> None:
    rate = rate_of((0, 0), (20, 1), (40, 2), (60, 3))
    assert rate.per_s(60) == pytest.approx(1 / 20)


def test_a_job_that_speeds_up_is_seen_to() -> None:
    slow = [(float(n), n) for n in range(60)]
    fast = [(60 + n / 10, 60 + n) for n in range(300)]
    assert rate_of(*slow, *fast).per_s(60 + 299 / 10) == pytest.approx(10, rel=0.01)


def test_a_job_that_stands_still_slows_down() -> None:
    rate = rate_of(*((n / 4, n) for n in range(400)))
    assert [round(rate.per_s(99.75 + wait) or 0, 1) for wait in (0, 10, 30, 1000)] == [4.0, 2.0, 1.0, 0.0]


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 50)), min_size=1, max_size=200))
def test_the_rate_is_that_of_a_recent_stretch(steps: list[tuple[float, int]]) -> None:
    """Never negative, never above the fastest step could make it, and memory is bounded by what the window holds."""
    rate, now_s, done = Rate(), 0.0, 0
    for wait_s, more in steps:
        now_s, done = now_s + wait_s, done + more
        rate.add(now_s, done)
        found = rate.per_s(now_s)
        assert found is None or 0 <= found <= done / 1e-3
    first = rate._points[0]
    if len(rate._points) > 2:
        second = rate._points[1]
        assert now_s - second[0] < RATE_WINDOW_S or done - second[1] < RATE_UNITS
    assert first[1] <= done


def shown(progress: JobProgress, width: int = 80, encoding: str = "utf-8") -> list[str]:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="")
    Console(file=file, width=width, color_system=None).print(progress)
    file.flush()
    return [line.rstrip() for line in raw.getvalue().decode(encoding).splitlines()]


def progress_at(*looks: tuple[float, object]) -> JobProgress:
    progress = JobProgress(0.0)
    for now_s, look in looks:
        progress.update(look, now_s)  # type: ignore[arg-type]
    return progress


def test_a_running_job_at_a_glance() -> None:
    progress = progress_at((0, sight()), (10, sight(40, retries=3, requeues=1)))
    head, bar, facts = shown(progress)
    assert head == "Job job-1  project demo  running"
    assert bar.endswith("40 of 100 units, 40 %")
    assert facts == "0:10, about 0:15 left   4.0/s   5 of 5 calls open   3 retries   1 requeue"


@pytest.mark.parametrize("width", [20, 40, 80, 120])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_it_keeps_to_the_width(width: int, encoding: str) -> None:
    big = sight(123_456, open_here=1234, open_all=5678, retries=12_345, requeues=1234, timeouts=99, failed=1)
    big = replace(big, status=replace(big.status, units=1_000_000, project="[red]" + "x" * 100, limit=2000))
    for line in shown(progress_at((0, sight()), (7200, big)), width, encoding):
        assert cell_len(line) <= max(width, 45)  # a phrase is not broken, however narrow it is


@pytest.mark.parametrize(
    "look, notice",
    [
        (sight(1), None),
        (sight(1, away_s=12), "the store has not answered for 0:12; trying again"),
        (sight(1, workers=0), "no worker is alive, so the job waits; start one: celery -A dicast worker"),
        (sight(1, state=JobState.CANCELLING), "no new calls; waiting for 5 open ones to end"),
        (sight(1, state=JobState.CANCELLING, open_here=0), None),
    ],
)
def test_what_holds_a_job_up_is_said(look: object, notice: str | None) -> None:
    progress = progress_at((0, sight()), (5, look))
    assert progress.notice() == notice
    assert (notice or "running") in progress.line() or look.status.state in progress.line()  # type: ignore[attr-defined]
    assert (progress.left_s is None) == (notice is not None or look.status.state != "running")  # type: ignore[attr-defined]


def test_time_without_an_answer_says_nothing_of_the_rate() -> None:
    progress = progress_at((0, sight()), (10, sight(40)), (300, sight(40, away_s=290)))
    assert progress.left_s is None
    progress.update(sight(60), 301)
    assert progress.left_s is not None


def test_calls_of_other_jobs_explain_a_share() -> None:
    assert "2 of 5 calls open (+3 of other jobs)" in progress_at((0, sight(open_here=2))).facts()


@pytest.mark.parametrize("text", [[], ["a" * 30]])
def test_phrases_stay_whole(text: list[str]) -> None:
    facts = ["one two", "three", *text, "four"]
    lines = wrapped(facts, 20)
    assert [part for line in lines for part in line.split("   ")] == facts


def test_figures_of_time() -> None:
    assert [elapsed(s) for s in (0, 7.4, 59.6, 725, 11_229, -1)] == ["0:00", "0:07", "1:00", "12:05", "3:07:09", "0:00"]
    assert [pace(r) for r in (0.1, 1, 1234.56)] == ["6.0/min", "1.0/s", "1,234.6/s"]


def test_what_a_job_waits_for_is_told() -> None:
    progress = JobProgress(0.0)
    progress.update(replace(sight(10), waits_for="its results cannot be written: /r/x: No space left on device"), 1.0)
    assert progress.notice() == "waits: its results cannot be written: /r/x: No space left on device"
    assert progress.line().endswith("; waits: its results cannot be written: /r/x: No space left on device")
