"""A few scenarios in virtual time: the production policy must stay as good as it was."""

from __future__ import annotations

import pytest

from lab.simulation.__main__ import run
from lab.simulation.catalogue import CATALOGUE, random_scenario
from lab.simulation.report import FLOOR, judge, shortfalls


@pytest.mark.parametrize("name", ["conc", "rpm_hdr", "rpm_blind", "outage"])
def test_the_policy_reaches_its_goal(name: str) -> None:
    scenario = CATALOGUE[name]
    result = judge(run(scenario, 1, "central"), run(scenario, 1, "oracle"))
    assert shortfalls(scenario, result, FLOOR) == []


def test_late_decisions_and_lost_outcomes_cost_little() -> None:
    scenario = CATALOGUE["conc"].but("short", "ten minutes of conc", seconds=600.0)
    oracle = run(scenario, 1, "oracle")
    distributed = judge(run(scenario, 1, "distributed"), oracle)
    assert distributed.utilisation > 0.94
    assert distributed.refused < 0.025
    assert distributed.unresolved == 0
    assert distributed.fairness > 0.98


def test_the_same_seed_is_the_same_run() -> None:
    scenario = random_scenario(7).but("short", "", seconds=120.0)
    first, second = run(scenario, 3, "central"), run(scenario, 3, "central")
    assert (first.accepted, first.refused, first.succeeded) == (second.accepted, second.refused, second.succeeded)


def test_refusals_that_do_not_depend_on_the_load_are_not_taken_for_a_limit() -> None:
    scenario = CATALOGUE["conc"].but("noisy", "ten minutes, a tenth refused at random", seconds=600.0, noise_share=0.1)
    result = judge(run(scenario, 1, "central"), run(scenario, 1, "oracle"))
    assert result.utilisation > 0.75
    assert result.refused < 0.16
