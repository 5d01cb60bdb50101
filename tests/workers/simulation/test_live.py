"""Short runs with two workers beside their store: what the wired governor is to reach over HTTP."""

from __future__ import annotations

import pytest

from workers.simulation.__main__ import run
from workers.simulation.live import SCENARIOS, judge_live, live_shortfalls


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_a_short_run_reaches_its_goal(name: str) -> None:
    result = judge_live(run(SCENARIOS[name], 2, "live"))
    assert live_shortfalls(result) == []


def test_all_units_of_a_short_run_are_served_once() -> None:
    record = run(SCENARIOS["http_steady"], 1, "live")
    assert sum(record.succeeded) == record.units == 900
    assert record.calls == 900 + sum(record.refused)
