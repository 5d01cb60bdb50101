"""Faults of the connections between workers and store."""

from __future__ import annotations

from lab.chaos.catalogue import fault
from lab.chaos.runs import Run


@fault(weight=4)
def store_late_200_ms(run: Run) -> None:
    """Each answer 200 ms late, for 2 to 5 s."""
    run.await_moment()
    run.place.link.set(delay_s=0.1)
    run.pause(run.chance.uniform(2, 5))
    run.place.link.set()


@fault(weight=3)
def store_late_3_s(run: Run) -> None:
    """Each answer 3 s late, for 4 to 7 s."""
    run.await_moment()
    run.strike()
    run.place.link.set(delay_s=1.5)
    run.pause(run.chance.uniform(4, 7))
    run.place.link.set()
    run.strike()


@fault(weight=8)
def reset_connections(run: Run) -> None:
    """For 3 s every connection to the store is reset at its next byte."""
    run.await_moment()
    run.strike()
    run.place.link.set(reset=True)
    run.pause(3)
    run.place.link.set()
    run.strike()


@fault(weight=4, loose_log=True, deadline_s=45)
def black_hole(run: Run) -> None:
    """For up to 12 s bytes to and from the store vanish without a sign."""
    run.await_moment()
    run.strike()
    run.place.link.set(hold=["up", "down"])
    run.pause(run.chance.choice([2.0, 6.0, 12.0]))
    run.place.link.set(cut=run.chance.random() < 0.5)
    run.strike()


@fault(weight=4, loose_log=True, deadline_s=45)
def one_way_cut(run: Run) -> None:
    """For up to 12 s bytes vanish in one of the two directions."""
    run.await_moment()
    run.strike()
    run.place.link.set(hold=[run.chance.choice(["up", "down"])])
    run.pause(run.chance.choice([2.0, 6.0, 12.0]))
    run.place.link.set(cut=run.chance.random() < 0.5)
    run.strike()
