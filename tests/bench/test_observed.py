"""A provider's log, summed up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.bench.observed import BIN_S, Cap, curve, observe


def entry(arrival: float, end: float | None, status: int = 200, open: int = 1) -> dict[str, Any]:
    return {"arrival": arrival, "end": end, "status": status, "open": open, "accepted": status in (0, 200)}


def test_counts_and_times() -> None:
    log = [
        entry(10.0, 11.0, open=1),
        entry(10.5, 10.5, 429, open=2),
        entry(10.5, 10.6, 529, open=2),
        entry(11.0, 12.0, open=3),
        entry(11.0, 11.5, status=0),
    ]
    seen = observe(log, Cap(2))
    assert (seen.calls, seen.answered, seen.refused, seen.cut_off, seen.most_open) == (5, 2, 2, 1, 3)
    assert (seen.wall_s, seen.used_s, seen.offered_s) == (2.0, 2.5, 4.0)
    assert seen.capacity == 0.625


def test_without_a_cap_nothing_is_offered() -> None:
    assert observe([entry(0.0, 1.0)]).capacity is None


def test_a_call_still_open_counts_until_the_last_end() -> None:
    assert observe([entry(0.0, None, status=0), entry(0.0, 2.0)]).used_s == 4.0


def test_a_cut_changes_what_is_offered_from_that_answer_on() -> None:
    log = [entry(0.0, 1.0), entry(0.0, 2.0), entry(1.0, 5.0)]
    assert observe(log, Cap(4, after=2, then=1)).offered_s == 4 * 2.0 + 1 * 3.0
    assert observe(log, Cap(4, after=9, then=1)).offered_s == 4 * 5.0


def test_an_empty_log_is_no_measurement() -> None:
    with pytest.raises(ValueError, match="empty"):
        observe([])


def test_curve() -> None:
    assert curve([entry(3.0, 4.0), entry(3.0, 3.25), entry(3.6, 3.6, 429)]) == [1.5, 1.0, 0.0]


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 20)), min_size=1, max_size=30))
def test_the_curve_holds_all_that_was_served(calls: list[tuple[float, float]]) -> None:
    log = [entry(start, start + length) for start, length in calls]
    served = sum(curve(log)) * BIN_S
    assert served == pytest.approx(observe(log).used_s, abs=0.01 * len(curve(log)))
