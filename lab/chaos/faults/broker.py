"""Faults of messages."""

from __future__ import annotations

from lab.chaos import messages
from lab.chaos.catalogue import fault
from lab.chaos.runs import Run
from tests.e2e.cluster import until


@fault(weight=4)
def double_messages(run: Run) -> None:
    """Every waiting message comes once more, half of them under another tag."""
    run.await_moment()
    messages.double(run)


@fault(weight=2, deadline_s=75)
def lose_messages(run: Run) -> None:
    """Up to three messages of each queue vanish."""
    run.await_moment()
    messages.lose(run)


@fault(weight=3)
def reverse_messages(run: Run) -> None:
    """The order of the queues' messages is reversed."""
    run.await_moment()
    messages.reverse(run)


@fault(weight=3)
def replay_messages(run: Run) -> None:
    """Messages of the running job come once more after its end."""
    run.await_moment()
    saved = messages.copies(run)
    until(lambda: (s := run.status()) is not None and s.state.ended, "the job ends", 30)
    messages.put(run, saved)


@fault(weight=3)
def broken_messages(run: Run) -> None:
    """Among the real messages are a pickle, and some without JSON, with wrong types, an unknown task or no unit."""
    run.await_moment()
    messages.put_broken(run)
