"""Clocks that step: the workers' host's, and the store's."""

from __future__ import annotations

from lab.chaos.catalogue import fault
from lab.chaos.clocks import SteppedClock
from lab.chaos.runs import Run

STEPS_S = (1.0, 60.0, 3600.0)


def _step(run: Run, clock: SteppedClock | None) -> None:
    """To one side, and back after a while."""
    assert clock is not None, "there is no C compiler here, by which a clock is made that steps"
    run.await_moment()
    step_s = run.chance.choice(STEPS_S) * run.chance.choice((-1, 1))
    clock.step(step_s)
    run.pause(run.chance.uniform(1, 6))
    clock.step(-step_s)


@fault(weight=4, hears_all=True)
def host_clock_step(run: Run) -> None:
    """For 1 to 6 s the clock of the workers' host is 1 s, a minute or an hour ahead or behind."""
    _step(run, run.place.clock)


@fault(weight=4, hears_all=True)
def store_clock_step(run: Run) -> None:
    """For 1 to 6 s the store's clock is 1 s, a minute or an hour ahead or behind."""
    _step(run, run.place.store.clock)
