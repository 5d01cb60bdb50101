"""Each mechanism can be switched off from outside, and shows what it is worth."""

from __future__ import annotations

import pytest

from dicast.workers.policy.breaker import Failures
from lab.simulation import ablation
from lab.simulation.__main__ import main, measured
from lab.simulation.ablation import MECHANISMS, Measure, loss, losses, watched, without
from lab.simulation.catalogue import CATALOGUE
from tests.workers.policy.build import done

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


def test_a_row_tells_means_and_where_a_mechanism_matters_most() -> None:
    found = {
        "a": loss(GOOD, GOOD),
        "b": loss(GOOD, Measure(0.88, 0.03, 2.0, 1.3)),
        "c": loss(GOOD, Measure(0.99, 0.0, 1.0, 1.0)),
    }
    assert ablation.line("latency", found) == "| latency | 3 | +3.00 | +10.0 b | +0.33 | +2.00 b | +3 | +0.10 |"
    assert ablation.line("latency", {}) == "| latency | 0 | | | | | | |"


def test_what_acts_is_watched_and_put_back() -> None:
    before = [[owner.__dict__[name] for owner, name, _ in nulls] for nulls in MECHANISMS.values()]
    with watched() as acting:
        measured(CATALOGUE["conc"].but("short", "a few seconds of it", seconds=20.0), [1])
    assert {"silence is acceptance", "no bursts while a step is tried", "diagnosis: rate"} <= acting
    assert not {"hidden windows", "rate: more is tried", "told: doubt", "waves of overload are borne"} & acting
    assert before == [[owner.__dict__[name] for owner, name, _ in nulls] for nulls in MECHANISMS.values()]


def test_only_what_acts_is_switched_off() -> None:
    runs = []

    def measure() -> Measure:
        runs.append(Measure(1.0 - 0.1 * len(runs), 0.0))
        Failures().count(done("a", 1.0, 0.0), at_floor=False)
        return runs[-1]

    found = losses(measure, ["latency", "breaker"])
    assert len(runs) == 2
    assert list(found) == ["breaker"]
    assert found["breaker"].used == pytest.approx(0.1)


def test_a_budget_that_nobody_enforces_costs_much_if_it_is_not_doubted() -> None:
    scenario = CATALOGUE["told_too_low"].but("short", "a minute of it", seconds=60.0)
    on = measured(scenario, [1])
    with without("told: doubt"):
        assert measured(scenario, [1]).used < on.used - 0.05


def test_noise_that_is_not_forgiven_is_taken_for_a_limit() -> None:
    scenario = CATALOGUE["conc"].but("noisy", "a tenth refused at random", seconds=600.0, noise_share=0.1)
    assert measured(scenario, [1]).used > 0.75
    with without("noise: forgiven"):
        assert measured(scenario, [1]).used < 0.5


def test_the_command_prints_a_row_for_each_mechanism(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--ablate", "latency,breaker", "--only", "noise_100", "--processes", "1"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split("|")[1].strip() for row in rows[2:]] == ["latency", "breaker"]


def test_an_unknown_mechanism_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--ablate", "luck"])
    assert "unknown mechanism 'luck'" in capsys.readouterr().err
