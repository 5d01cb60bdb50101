"""Short runs with two workers beside their store: what the wired governor is to reach over HTTP."""

from __future__ import annotations

import pytest

from lab.simulation.__main__ import run
from lab.simulation.live import SCENARIOS, judge_live, live_shortfalls, possible


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_a_short_run_reaches_its_goal(name: str) -> None:
    result = judge_live(run(SCENARIOS[name], 2, "live"))
    assert live_shortfalls(result) == []


def test_all_units_of_a_short_run_are_served_once() -> None:
    record = run(SCENARIOS["http_steady"], 1, "live")
    assert sum(record.succeeded) == record.units == 900
    assert record.calls == 900 + sum(record.refused)


@pytest.mark.parametrize(
    ("latencies_s", "cap", "cut", "want"),
    [
        ([1.0] * 8, 4, None, 1.0),
        ([1.0] * 9, 4, None, 9 / 12),  # the last one is alone
        ([3.0, 1.0, 1.0], 2, None, 5 / 6),
        ([1.0] * 6, 4, (2, 1), 6 / 6),  # four in the first second, then one after the other
        ([], 4, None, 1.0),
    ],
)
def test_what_is_possible(latencies_s: list[float], cap: int, cut: tuple[int, int] | None, want: float) -> None:
    assert possible(latencies_s, cap, cut) == pytest.approx(want)
