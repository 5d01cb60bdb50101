"""Circuit breaker: closed, open, half open with exactly one probe.

    closed --trip--> open --break over--> half open --probe answered--> closed
                      ^                      |
                      +---- refused, failed, or lost by its deadline (break time doubles, up to a cap)

Pattern: Nygard, Release It! (2007), ch. 5. What trips it is up to the profile. Break time starts anew after each
recovery. The probe is granted by the enforcer: never a second one while one is open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dicast.workers.policy.calls import Done
from dicast.workers.policy.parameters import BreakerPhase


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    """The durations. `break_s` is the first break, `break_max_s` the longest; a probe older than `probe_s` is lost."""

    break_s: float = 5.0
    break_max_s: float = 15.0
    probe_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Breaker:
    """The breaker's state. `until` ends the break; `number` counts breaks; `reopened` counts those since the last
    recovery."""

    phase: BreakerPhase = BreakerPhase.CLOSED
    until: float = 0.0
    number: int = 0
    reopened: int = 0
    probe: str = ""
    probe_sent_at: float = 0.0

    @property
    def closed(self) -> bool:
        return self.phase is BreakerPhase.CLOSED


def trip(config: BreakerConfig, breaker: Breaker, now: float) -> Breaker:
    """Open a closed breaker for `break_s`; one that is not closed stays as it is."""
    if not breaker.closed:
        return breaker
    return Breaker(BreakerPhase.OPEN, now + config.break_s, breaker.number + 1)


def tick(config: BreakerConfig, breaker: Breaker, now: float) -> Breaker:
    """Let time pass: a break that is over becomes half open, a lost probe opens anew."""
    if breaker.phase is BreakerPhase.OPEN and now >= breaker.until:
        return replace(breaker, phase=BreakerPhase.HALF_OPEN)
    if breaker.phase is BreakerPhase.HALF_OPEN and breaker.probe and now >= breaker.probe_sent_at + config.probe_s:
        return _reopen(config, breaker, now)
    return breaker


def probe_sent(breaker: Breaker, call: str, now: float) -> Breaker:
    """Note that the enforcer let a probe go. It may know earlier that the break is over, or the last probe lost."""
    if breaker.closed:
        return breaker
    return replace(breaker, phase=BreakerPhase.HALF_OPEN, probe=call, probe_sent_at=now)


def probe_answered(config: BreakerConfig, breaker: Breaker, call: str, good: bool, now: float) -> Breaker:
    """Close on a good answer, open longer on a bad one; answers of other calls change nothing."""
    if breaker.phase is not BreakerPhase.HALF_OPEN or call != breaker.probe:
        return breaker
    return Breaker(number=breaker.number) if good else _reopen(config, breaker, now)


def _reopen(config: BreakerConfig, breaker: Breaker, now: float) -> Breaker:
    reopened = breaker.reopened + 1
    break_s = min(config.break_max_s, config.break_s * 2.0 ** min(reopened, 60))
    return Breaker(BreakerPhase.OPEN, now + break_s, breaker.number + 1, reopened)


@dataclass(slots=True)
class Failures:
    """Consecutive failures. `since` is the send time of the first in the row; only an answer to a later call ends it.

    They trip the breaker of the default engine.
    """

    row: int = 0
    since: float | None = None

    def diagnosed(self, now: float) -> None:
        """Note that the limit was cut for calls that were turned away: those that are sent later count."""
        self.since = now if self.since is None else self.since

    def count(self, event: Done, at_floor: bool, *, turned_away: bool = False) -> int:
        """Count one outcome; returns the row's length. Refusals count only at the floor, where nothing is left to
        cut, and calls that were turned away only once a lower limit has not helped."""
        if turned_away and self.since is None:
            return self.row
        if event.failed or turned_away or (event.was_refused and at_floor):
            self.row += 1
            self.since = event.sent_at if self.since is None else min(self.since, event.sent_at)
        elif not event.was_refused and (self.since is None or event.sent_at > self.since):
            self.row, self.since = 0, None
        return self.row
