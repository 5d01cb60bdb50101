"""Each mechanism can be switched off from outside, and shows what it is worth."""

from __future__ import annotations

import pytest

from lab.simulation import ablation
from lab.simulation.__main__ import main, measured
from lab.simulation.ablation import MECHANISMS, Measure, earned, loss, losses, without
from lab.simulation.catalogue import CATALOGUE

GOOD = Measure(0.98, 0.01, 0.0, 1.0)


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_mechanism_is_off_inside_and_on_after_even_where_the_run_fails(name: str) -> None:
    nulls = MECHANISMS[name]
    before = [owner.__dict__[attribute] for owner, attribute, _ in nulls]
    with pytest.raises(ZeroDivisionError), without(name):
        assert [owner.__dict__[attribute] for owner, attribute, _ in nulls] == [null for _, _, null in nulls]
        assert all(null is not kept for (_, _, null), kept in zip(nulls, before, strict=True))
        _ = 1 / 0
    assert [owner.__dict__[attribute] for owner, attribute, _ in nulls] == before


@pytest.mark.parametrize(
    ("off", "want"),
    [
        (Measure(0.976, 0.014), False),
        (Measure(0.974, 0.01), True),
        (Measure(0.98, 0.016), True),
        (Measure(0.98, 0.01, unresolved=2.0), False),
        (Measure(0.98, 0.01, unresolved=3.0), True),
        (Measure(0.98, 0.01, latency=1.1), True),
        (Measure(0.99, 0.00), False),
    ],
)
def test_half_a_point_units_or_latency_earn_a_place(off: Measure, want: bool) -> None:
    assert earned(loss(GOOD, off)) is want


def test_the_search_ends_where_a_mechanism_has_earned_its_place_unless_the_whole_is_asked_for() -> None:
    on = {"a": GOOD, "b": GOOD, "c": GOOD}
    off = {"a": GOOD, "b": Measure(0.5, 0.01), "c": Measure(0.4, 0.01)}
    assert list(losses("latency", "abc", off.__getitem__, on, whole=False)) == ["a", "b"]
    found = losses("latency", "abc", off.__getitem__, on, whole=True)
    assert ablation.line("latency", found).startswith("| latency | +58.0 c |")


def test_a_budget_that_nobody_enforces_costs_much_if_it_is_not_doubted() -> None:
    scenario = CATALOGUE["told_too_low"].but("short", "a minute of it", seconds=60.0)
    on = measured(scenario, [1])
    with without("told: doubt"):
        assert measured(scenario, [1]).used < on.used - 0.05


def test_the_command_prints_a_row_for_each_mechanism(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--ablate", "latency,breaker", "--only", "noise_100", "--processes", "1"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split("|")[1].strip() for row in rows[2:]] == ["latency", "breaker"]


def test_an_unknown_mechanism_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--ablate", "luck"])
    assert "unknown mechanism 'luck'" in capsys.readouterr().err
