"""A node's width by CPU and errors, in virtual time."""

from __future__ import annotations

import logging

import psutil
import pytest

from dicast.workers.admission.concurrency import NodeWidth, cpu_percent, of_one_core
from dicast.workers.policy.calls import CallOutcome
from dicast.workers.policy.rules import RulesConfig


class Machine:
    def __init__(self, configured: int = 12, rules: RulesConfig | None = RulesConfig()) -> None:  # noqa: B008
        self.now, self.load, self.load5 = 1000.0, 10.0, 30.0
        readings = {"cpu": lambda: self.load, "load": lambda: self.load5, "clock": lambda: self.now}
        self.width = NodeWidth(configured, rules, **readings)

    def passes(self, seconds: int) -> list[int]:
        widths = []
        for _ in range(seconds):
            self.now += 1.0
            widths.append(self.width.sample().current)
        return widths

    def calls(self, *statuses: int) -> None:
        for status in statuses:
            self.width.record(CallOutcome(status))


def test_a_busy_cpu_halves_the_width_after_the_grace_and_gives_it_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    machine = Machine()
    machine.load = 390.0
    assert set(machine.passes(119)) == {12}
    assert machine.passes(20)[-1] < 6
    machine.load = 20.0
    machine.passes(6)
    assert machine.width.width == 12
    changes = [r for r in caplog.records if getattr(r, "event", "") == "width_changed"]
    assert [r.message.removeprefix("width ") for r in changes] == [
        "12 -> 6, CPU 390 %", "6 -> 3, CPU 390 %", "3 -> 1, CPU 390 %", "1 -> 12, CPU recovered",
    ]  # fmt: skip
    assert [r.levelname for r in changes] == ["WARNING", "WARNING", "WARNING", "INFO"]


def test_the_rules_may_go_by_the_load_of_five_minutes_and_both_are_told() -> None:
    machine = Machine(rules=RulesConfig(cpu_by="load"))
    machine.load = 390.0
    machine.passes(130)
    status = machine.width.sample()
    assert (status.current, status.cpu_percent, status.load_percent) == (12, 390.0, 30.0)
    machine.load, machine.load5 = 10.0, 310.0
    machine.passes(5)
    assert machine.width.sample().reason == "CPU 310 %"


def test_window_and_sustain_are_the_operators() -> None:
    machine = Machine(rules=RulesConfig(window_s=30.0, sustain_s=10.0))
    machine.calls(*[500] * 10)
    machine.passes(20)
    assert machine.width.width < 12
    machine.passes(20)
    assert machine.width.sample().window_size == 0, "the failures are out of the window"
    least = machine.width.width
    machine.passes(25)
    assert machine.width.width >= least + 2


def test_failures_narrow_it_to_half_and_refusals_do_not() -> None:
    machine = Machine()
    machine.calls(*[200] * 5, *[429, 529] * 50)
    machine.passes(30)
    assert machine.width.width == 12
    machine.calls(*[500, 0] * 50)
    machine.passes(120)
    status = machine.width.sample()
    assert (status.current, status.configured, status.window_size) == (6, 12, 105)
    assert status.error_rate > 0.9 and "error rate" in status.reason


def test_a_call_that_was_not_made_tells_nothing() -> None:
    machine = Machine()
    machine.width.record(None)
    assert machine.width.sample().window_size == 0


def test_fixed_stays_whatever_happens() -> None:
    machine = Machine(rules=None)
    machine.load = 400.0
    machine.calls(*[500] * 100)
    assert set(machine.passes(600)) == {12}
    status = machine.width.sample()
    assert (status.current, status.cpu_percent, status.error_rate) == (12, 400.0, 1.0)


def test_what_is_older_than_the_window_is_forgotten() -> None:
    machine = Machine(rules=None)
    for _ in range(2000):
        machine.calls(200)
        machine.passes(1)
    assert len(machine.width._engine.state.seconds) <= 602


@pytest.mark.parametrize("cores", [1, 2, 4, 64, None])
@pytest.mark.parametrize(("busy", "halved"), [(74.0, False), (76.0, True)])
def test_a_threshold_of_all_cores_means_the_same_on_any_machine(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, busy: float, halved: bool
) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda: cores)
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: busy)
    now = 0.0
    width = NodeWidth(16, RulesConfig(cpu_high_percent=of_one_core(75.0)), clock=lambda: now)
    for second in range(140):
        now = float(second)
        width.sample()
    assert (width.width < 16) is halved
    assert cpu_percent() == busy * (cores or 1)


def test_this_machines_cpu_is_a_sane_number() -> None:
    assert 0.0 <= cpu_percent() < 1e6
