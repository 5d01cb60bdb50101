"""The store does what it is asked, and its answers are lost; or it answers late, and everybody lives.

Nobody dies of these, so nothing may be paid twice, and the books must be the provider's to the token.
"""

from __future__ import annotations

import signal

from lab.chaos.catalogue import fault
from lab.chaos.runs import Run


def _lose(run: Run, share: float, late_s: float) -> None:
    run.await_moment()
    run.place.link.set(lose=share, late_s=late_s)
    run.pause(run.chance.uniform(3, 8))
    run.place.link.set()


@fault(weight=4, deadline_s=60)
def lose_1_percent_of_answers(run: Run) -> None:
    """For 3 to 8 s one of the store's answers in a hundred is lost, its connection reset at once or within 2 s."""
    _lose(run, 0.01, run.chance.choice([0.0, 2.0]))


@fault(weight=4, deadline_s=75)
def lose_20_percent_of_answers(run: Run) -> None:
    """For 3 to 8 s one in five of the store's answers is lost, its connection reset at once or within 2 s."""
    _lose(run, 0.2, run.chance.choice([0.0, 2.0]))


@fault(weight=3, deadline_s=60)
def store_stalls_long(run: Run) -> None:
    """The store does not answer for 5 to 10 s: longer than its clients wait, which send everything again."""
    run.await_moment()
    run.place.store.process.send_signal(signal.SIGSTOP)
    run.pause(run.chance.uniform(5, 10))
    run.place.store.process.send_signal(signal.SIGCONT)


@fault(weight=3)
def worker_stalls(run: Run) -> None:
    """A worker stands still for 1 to 5 s: too short for others to take its work."""
    run.await_moment()
    victim = run.chance.choice(run.place.workers).process
    run.place.freeze(victim)
    run.pause(run.chance.uniform(1, 5))
    run.place.thaw(victim)
