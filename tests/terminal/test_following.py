from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as StoreConnectionError

from dicast.app.cli import following
from dicast.app.cli.following import Action, Interrupts, JobSnapshot, JobVanished, JobWatcher, StoreAway, follow
from dicast.app.ledger.client import JobStatus, UnknownJob
from dicast.app.ledger.records import JobState
from tests.terminal.building import sight, status


class Script:
    """A lookout that sees what the test says, a step a look."""

    def __init__(self, *steps: JobSnapshot | Callable[[], None] | Exception) -> None:
        self._steps = list(steps)
        self._last: JobSnapshot | None = None

    def snapshot(self) -> JobSnapshot | None:
        if self._steps:
            step = self._steps.pop(0)
            if isinstance(step, Exception):
                raise step
            if isinstance(step, JobSnapshot):
                self._last = step
            else:
                step()
        return self._last


class Person:
    """Answers questions and remembers what was done."""

    def __init__(self, *answers: Action, reachable: bool = True) -> None:
        self._answers, self._reachable = list(answers), reachable
        self.asked = self.cancelled = 0
        self.seen: list[JobState] = []

    def follow(self, script: Script, interrupts: Interrupts, *, alone: bool = False) -> JobStatus | None:
        return follow(
            script, interrupts, show=self._show, ask=self._ask, cancel=self._cancel, alone=lambda: alone,  # type: ignore[arg-type]
        )  # fmt: skip

    def _show(self, look: JobSnapshot) -> None:
        self.seen.append(look.status.state)

    def _ask(self) -> Action:
        self.asked += 1
        return self._answers.pop(0)

    def _cancel(self) -> bool:
        self.cancelled += 1
        return self._reachable


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    with Interrupts() as found, found.hold():
        yield found


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


ENDED = sight(100, state=JobState.COMPLETED)
CANCELLED = sight(60, state=JobState.CANCELLED)


def test_what_the_caller_has_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as found, found.hold():
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            assert (found.presses, found.ordered) == (1, True)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_job_is_followed_to_its_end(interrupts: Interrupts) -> None:
    person = Person()
    assert person.follow(Script(sight(1), sight(50), ENDED), interrupts) == ENDED.status
    assert person.seen[-1] is JobState.COMPLETED
    assert person.asked == 0


def test_keep_goes_on_as_if_nothing_was(interrupts: Interrupts) -> None:
    person = Person(Action.KEEP, Action.KEEP)
    assert person.follow(Script(sight(1), press, sight(2), press, ENDED), interrupts) == ENDED.status
    assert (person.asked, person.cancelled) == (2, 0)


def test_detach_leaves_the_job_alone(interrupts: Interrupts) -> None:
    person = Person(Action.DETACH)
    assert person.follow(Script(sight(1), press, sight(2), ENDED), interrupts) is None
    assert (person.asked, person.cancelled) == (1, 0)


def test_cancel_still_waits_for_the_end(interrupts: Interrupts) -> None:
    person = Person(Action.CANCEL)
    script = Script(sight(1), press, sight(2, state=JobState.CANCELLING), CANCELLED)
    assert person.follow(script, interrupts) == CANCELLED.status
    assert (person.asked, person.cancelled) == (1, 1)


def test_a_second_press_does_not_wait_for_a_cancelled_job(interrupts: Interrupts) -> None:
    person = Person(Action.CANCEL)
    assert person.follow(Script(sight(1), press, sight(2), press, sight(3), CANCELLED), interrupts) is None
    assert (person.asked, person.cancelled) == (1, 1)


def test_a_cancel_that_did_not_reach_the_store_is_asked_again(interrupts: Interrupts) -> None:
    person = Person(Action.CANCEL, Action.DETACH, reachable=False)
    assert person.follow(Script(sight(1), press, sight(2), press, sight(3), ENDED), interrupts) is None
    assert (person.asked, person.cancelled) == (2, 1)


def test_an_end_counts_even_if_keys_were_pressed_meanwhile(interrupts: Interrupts) -> None:
    person = Person()
    press()
    interrupts.presses = 0  # before following began
    assert person.follow(Script(ENDED), interrupts) == ENDED.status


def test_trouble_of_the_lookout_ends_it(interrupts: Interrupts) -> None:
    with pytest.raises(StoreAway):
        Person().follow(Script(sight(1), StoreAway("away")), interrupts)


@pytest.mark.parametrize("number", Interrupts.SIGNALS)
def test_signals_are_counted_only_while_held(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Interrupts() as interrupts:
        with interrupts.hold():
            os.kill(os.getpid(), number)
            with pytest.raises(KeyboardInterrupt), interrupts.let_raise():
                os.kill(os.getpid(), number)
                time.sleep(5)
            os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
            time.sleep(5)
        assert interrupts.presses == 4
        assert interrupts.ordered is (number is not signal.SIGINT)
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("reachable", [True, False])
def test_nobody_is_kept_by_a_job_that_does_not_end(
    interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch, reachable: bool
) -> None:
    """SIGTERM, or nobody at the keyboard: it is cancelled, and left when it will not end, or cannot be told."""
    monkeypatch.setattr(following, "HURRY_S", 0.0)
    ordered = Person(Action.CANCEL, reachable=reachable)
    assert (
        ordered.follow(Script(sight(1), lambda: interrupts._on_signal(signal.SIGTERM, None)), interrupts, alone=True)
        is None
    )
    assert ordered.cancelled == 1


class FakeLedger:
    """Answers with what stands in `now`, once for each permit; an exception is raised."""

    def __init__(self, now: Any) -> None:
        self.now = now
        self.looked = threading.Semaphore(0)

    def status(self, job: str) -> JobStatus:
        self.looked.release()
        if isinstance(self.now, Exception):
            raise self.now
        assert isinstance(self.now, JobStatus)
        return self.now

    def open_calls(self) -> dict[str, int]:
        return {"all": 7, "p:x": 7, "j:job-1": 2, "j:other": 5}


class FakeRegistry:
    def alive(self) -> list[str]:
        return ["w1", "w2"]


def lookout(ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch, why: str | None = None) -> JobWatcher:
    monkeypatch.setattr(following, "LOOK_EVERY_S", 0.005)
    return JobWatcher(ledger, FakeRegistry(), "job-1", lambda _: why)  # type: ignore[arg-type]


def after_looks(ledger: FakeLedger, count: int = 2) -> None:
    """So many looks have begun since now, so all but the last are over."""
    while ledger.looked.acquire(blocking=False):
        continue
    for _ in range(count):
        assert ledger.looked.acquire(timeout=10)


def test_the_lookout_tells_what_the_ledger_says(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = FakeLedger(status(3))
    with lookout(ledger, monkeypatch) as found:
        after_looks(ledger)
        assert found.snapshot() == JobSnapshot(status(3), 2, 7, 2)
        ledger.now = status(9)
        after_looks(ledger, 3)
        assert found.snapshot() == JobSnapshot(status(9), 2, 7, 2)


def test_a_job_that_stands_still_tells_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "STILL_S", 0.0)
    monkeypatch.setattr(following, "WORKERS_EVERY_S", 0.0)
    ledger = FakeLedger(status(3))
    with lookout(ledger, monkeypatch, "the pool is down") as found:
        after_looks(ledger, 4)
        assert found.snapshot() == JobSnapshot(status(3), 2, 7, 2, waits_for="the pool is down")
        ledger.now = replace(status(3), waits_for="the disk is full")
        after_looks(ledger, 3)
        assert found.snapshot() == JobSnapshot(ledger.now, 2, 7, 2, waits_for="the disk is full")


def test_units_that_end_in_an_error_are_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "STILL_S", 0.0)
    monkeypatch.setattr(following, "WORKERS_EVERY_S", 3600.0)
    clock = SimpleNamespace(now=7.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(following, "time", clock)
    ledger = FakeLedger(status(3))
    with lookout(ledger, monkeypatch, "the pool is down") as found:
        after_looks(ledger)
        clock.now = 3700.0
        after_looks(ledger)
        clock.now = 3700.1
        ledger.now = replace(status(5), counters={**status(5).counters, "failed": 2})
        after_looks(ledger, 3)
        seen = found.snapshot()
        assert seen is not None and seen.waits_for == "the pool is down"
        ledger.now = replace(status(6), counters={**status(6).counters, "scored": 4})
        after_looks(ledger, 3)
        assert found.snapshot() == JobSnapshot(ledger.now, 2, 7, 2)


def test_a_silent_store_is_told_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = FakeLedger(status(3))
    monkeypatch.setattr(following, "AWAY_AFTER_S", 0.0)
    with lookout(ledger, monkeypatch) as found:
        after_looks(ledger)
        ledger.now = StoreConnectionError("gone")
        after_looks(ledger, 3)
        seen = found.snapshot()
        assert seen is not None
        assert seen.away_s > 0
        assert replace(seen, away_s=0.0) == JobSnapshot(status(3), 2, 7, 2)
        monkeypatch.setattr(following, "STORE_AWAY_MAX_S", 0.0)
        with pytest.raises(StoreAway, match="gone"):
            found.snapshot()
        monkeypatch.setattr(following, "AWAY_AFTER_S", 60.0)
        ledger.now = status(4)
        after_looks(ledger, 3)
        assert found.snapshot() == JobSnapshot(status(4), 2, 7, 2)


def test_an_end_that_was_seen_stays_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the person takes to answer a question: the lookout looks no more, and that is no silence."""
    ledger = FakeLedger(ENDED.status)
    with lookout(ledger, monkeypatch) as found:
        assert ledger.looked.acquire(timeout=10)
        found._thread.join(timeout=10)
        monkeypatch.setattr(following, "AWAY_AFTER_S", 0.0)
        monkeypatch.setattr(following, "STORE_AWAY_MAX_S", 0.0)
        seen = found.snapshot()
        assert seen is not None
        assert (seen.status, seen.away_s) == (ENDED.status, 0.0)


@pytest.mark.parametrize(
    "trouble, told", [(UnknownJob("job-1"), JobVanished), (ZeroDivisionError("a bug"), ZeroDivisionError)]
)
def test_what_waiting_cannot_heal_is_raised(
    trouble: Exception, told: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = FakeLedger(trouble)
    with lookout(ledger, monkeypatch) as found:
        assert ledger.looked.acquire(timeout=10)
        found._thread.join(timeout=10)
        with pytest.raises(told):
            found.snapshot()
