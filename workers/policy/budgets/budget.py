"""One reported budget: what is left of it now, when it comes back, and whether it is enforced at all.

A header is a snapshot of the instant at which its call arrived, one latency ago. The call's outcome repeats our
counters as they stood at its send; so what we spent since then is known exactly, and a late snapshot costs nothing.
What is missing beyond our own spending was used by other tenants of the account (`drain_per_s`, averaged).

What is left may be spent at once. How it comes back depends on the budget's `nature`; until that is known, it is
treated as a window whose end has to be observed. While it holds calls back, a few are sent all the same now and then:
see `doubt`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dicast.workers.policy.budgets.meter import MOST_POINTS, Meter
from dicast.workers.policy.budgets.nature import BudgetKind, Nature, Snapshot
from dicast.workers.policy.budgets.trust import Trust
from dicast.workers.policy.calls import CallLog, LoggedCall
from dicast.workers.policy.headers import BudgetUnit, Reading
from dicast.workers.policy.parameters import Bucket

GUARD_S = 0.06
"""A call sent this long after a window's end arrives after it, however fast it travels."""
RESERVE_PART, RESERVE_S = 0.10, 6.0
"""A bucket that others may use, too, keeps a reserve: a part of it, or the refill of this time if that is less."""
AT_ONCE = 1e6
"""The speed above the reserve, relative to the refill: what is left may be spent at once."""
LOG_PART = 0.02
"""When each call of a log comes back is known only roughly, so this part is not used ..."""
LOG_GUARD_S = 0.3
"""... and this much time is added to each wait."""
LEAST_WINDOW_S, ANOTHER_PART = 0.8, 0.25
"""The next window's end is further off than the first, and than the second as a part of what is left of it."""
ENOUGH_CALLS = 10.0
"""Two snapshots are compared when they differ by this many calls, or are far apart."""
EPSILON = 1e-3
FEW = 3.0
"""The number of calls by which our count may be wrong, since two sent at once arrive in any order."""
BLUR_PART = 0.03
"""The part of a budget by which our count may be wrong as well."""


@dataclass(slots=True)
class Budget:
    """A reported budget, as of its newest snapshot, which came with the `number`th call: `level` was left at
    `dated_at`, when our counter stood at `spent`.

    `taken` is what was spent, without the reservations of the `refused` calls; `meter` is its past. `ends_at` is when a
    window gives everything back (0: unknown): the `earliest` reported end, but no earlier than `latest`, the latest
    reported end less its resolution. `late_s` is by how much it comes later than reported. `rolls` counts the observed
    ends, the last at `rolled_at`. An end that is not reported is tried again after `search_s`. If `milliseconds` is
    above 0, bare numbers are milliseconds. `edition` counts the versions for the enforcer; `cost` is what one call
    takes.
    """

    key: str
    unit: BudgetUnit
    model: str
    limit: float = 0.0
    level: float = 0.0
    dated_at: float = -1.0
    spent: float = 0.0
    number: int = 0
    capacity: float = 1.0
    drain_per_s: float = 0.0
    edition: int = 0
    cost: float = 1.0
    nature: Nature = field(default_factory=Nature)
    trust: Trust = field(default_factory=Trust)
    anchor: Snapshot | None = None
    ends_at: float = 0.0
    earliest: float = 0.0
    latest: float = 0.0
    late_s: float = 0.0
    rolls: int = 0
    rolled_at: float = 0.0
    search_s: float = 0.0
    milliseconds: float = 0.0
    refused: int = 0
    taken: float = 0.0
    meter: Meter = field(default_factory=Meter)

    @property
    def name(self) -> str:
        return f"{self.key}:{self.model}" if self.model else self.key

    @property
    def refill_per_s(self) -> float:
        return self.limit / self.nature.lasts_s

    @property
    def reserve(self) -> float:
        """The level below which a bucket is not used."""
        if self.nature.kind is not BudgetKind.BUCKET:
            return 0.0
        return min(RESERVE_PART * self.capacity, RESERVE_S * self.refill_per_s)

    @property
    def opens_at(self) -> float:
        """When the present window is expected to have ended; 0 if that is unknown."""
        return self.ends_at + self.late_s + GUARD_S if self.ends_at else 0.0

    # Snapshots

    def observe(self, reading: Reading, trial: LoggedCall, answered_at: float, spent: float, cost: float) -> None:
        """Take in a snapshot that is newer than the last one; an older one is ignored."""
        sent_at = trial.sent_at
        if sent_at < self.dated_at or (sent_at == self.dated_at and trial.number < self.number):
            return
        if self.unit is not BudgetUnit.REQUESTS:
            self.cost = cost
        self._take_terms(reading)
        reset_at, grain_s = self._reset(reading, sent_at, answered_at)
        taken = spent - self.cost * self.refused
        new = Snapshot(sent_at, reading.remaining, taken, reset_at, grain_s)
        apart_s = self.nature.lasts_s / (MOST_POINTS - 10)
        self.meter.note(sent_at, taken, apart_s)
        if self.edition:
            self._follow(new, answered_at)
        self.anchor = self.anchor or new
        self._date_end(new, reading.from_answer)
        exact = self.nature.kind is BudgetKind.BUCKET and reset_at is not None and grain_s < 0.5
        depth = reading.remaining + self.refill_per_s * ((reset_at or 0.0) - sent_at) if exact else self.limit
        self.capacity = max(depth, reading.remaining, 1.0)
        self.level, self.dated_at, self.spent = reading.remaining, sent_at, spent
        self.number, self.taken = trial.number, taken
        if self.nature.kind is not BudgetKind.BUCKET:
            self.level = max(0.0, self.level - self.drain_per_s * (answered_at - sent_at))
        self.edition += 1

    def _take_terms(self, reading: Reading) -> None:
        limit = reading.limit or max(self.limit, reading.remaining)
        if self.limit and abs(limit / self.limit - 1.0) > 0.01:
            self.anchor, self.ends_at = None, 0.0
            if not self.trust.believed:
                self.trust.restore()
        self.limit = max(limit, 1e-9)
        if reading.period_s > 0.0:
            self.nature.period_s, self.nature.told = reading.period_s, True

    def _reset(self, reading: Reading, sent_at: float, answered_at: float) -> tuple[float | None, float]:
        """Return the reported reset as an instant of our clock, and its resolution. None if it says nothing: a reset of
        0 while nothing is left."""
        seconds, grain_s = reading.reset_s, reading.grain_s
        if seconds is None or (seconds <= 0.0 and reading.remaining < 1.0):
            return None, 0.0
        if reading.bare and self._in_milliseconds(reading, seconds):
            seconds, grain_s = seconds / 1000.0, grain_s / 1000.0
        if reading.from_answer:
            self._lasts(seconds + answered_at - sent_at, grain_s)
            return answered_at + seconds, grain_s
        self._lasts(seconds, grain_s)
        return sent_at + seconds, grain_s

    def _lasts(self, seconds: float, grain_s: float) -> None:
        self.nature.lasts_longer(seconds - grain_s)

    def _in_milliseconds(self, reading: Reading, reset_value: float) -> bool:
        """Return whether numbers without a unit are milliseconds: they are far too long for seconds, or a thousand
        times what a bucket's refill takes."""
        lasts_s, used = self.nature.lasts_s, self.limit - reading.remaining
        if reset_value > 2.0 * lasts_s and (reading.period_s or self.milliseconds > 0.0 or reset_value > 1000.0):
            self.milliseconds = min(5.0, self.milliseconds + 2.0)
        elif used >= 1.0 and reset_value >= 10.0:
            refill_s, within = used * lasts_s / self.limit, 1.0 / used + 0.1
            if abs(reset_value / 1000.0 / refill_s - 1.0) <= within:
                self.milliseconds = min(5.0, self.milliseconds + 1.0)
            elif abs(reset_value / refill_s - 1.0) <= within + 1.0 / reset_value:
                self.milliseconds = max(-5.0, self.milliseconds - 1.0)
        return self.milliseconds > 0.0

    def _follow(self, new: Snapshot, answered_at: float) -> None:
        """Infer what has happened since the last snapshot: a new window has begun, or something came back or was used
        by others."""
        if self._window_restarted(new):
            self._rolled(new, answered_at)
            return
        lasts_s = self.nature.lasts_s
        came_back = new.remaining - self.level + new.spent - self.taken
        self.nature.slides(came_back, self.meter.between(self.dated_at - lasts_s, new.at - lasts_s), self.cost)
        anchor, apart_s = self.anchor, max(0.3, 2.5 * new.blur_s if new.reset_at is not None else 0.5)
        if anchor is None or new.at < anchor.at + apart_s:
            return
        if abs(anchor.remaining - new.remaining) < ENOUGH_CALLS * self.cost and new.at < anchor.at + 10.0 * apart_s:
            return
        self.nature.compare(anchor, new, self.limit, self.cost)
        came_back = new.remaining - anchor.remaining + new.spent - anchor.spent
        self._note_drain(came_back, new, new.at - anchor.at)
        self.anchor = new

    def _window_restarted(self, new: Snapshot) -> bool:
        """Return whether a window has ended since the last snapshot: most of what was used came back, and its end
        moved."""
        if self.nature.kind in (BudgetKind.BUCKET, BudgetKind.LOG):
            return False
        if new.reset_at is not None and not self._is_later_window(new.reset_at, new):
            return False
        came_back = new.remaining - self.level + new.spent - self.taken
        return came_back >= max(FEW * self.cost, BLUR_PART * self.limit, 0.5 * (self.limit - self.level))

    def _is_later_window(self, reported_end: float, new: Snapshot) -> bool:
        """Return whether a reported end is that of a later window; slow calls report the same end a little later."""
        further_s = reported_end - self.ends_at
        return further_s > max(
            new.blur_s, LEAST_WINDOW_S, ANOTHER_PART * min(reported_end - new.at, self.nature.lasts_s)
        )

    def _note_drain(self, came_back: float, new: Snapshot, elapsed: float) -> None:
        """Update what others use: the refill that is due, less what came back. A full budget lacks nothing."""
        due = self.refill_per_s * elapsed if self.nature.kind is BudgetKind.BUCKET else 0.0
        full = new.remaining >= 0.98 * self.capacity
        missing = 0.0 if full else (due - came_back) / elapsed
        drain_per_s = self.drain_per_s + min(1.0, elapsed / 5.0) * (missing - self.drain_per_s)
        most_per_s = 0.95 * self.refill_per_s if self.nature.kind is BudgetKind.BUCKET else drain_per_s
        self.drain_per_s = max(0.0, min(most_per_s, drain_per_s))

    def _rolled(self, new: Snapshot, answered_at: float) -> None:
        """Note that a new window has begun between the last snapshot and this one: when reported, later, or earlier.

        A call that was sent before its end and arrived after it does not say which.
        """
        expected = self.ends_at + self.late_s
        if self.ends_at and self.dated_at > expected + GUARD_S:
            self.late_s += self.dated_at - expected
        elif self.ends_at and answered_at < expected - 2.0 * new.blur_s:
            self.late_s -= expected - answered_at
        if self.rolled_at:
            self.nature.period_is_less(new.at - self.rolled_at)
        self.rolls, self.rolled_at, self.search_s = self.rolls + 1, new.at, 0.0
        self.nature.jumped()
        self.trust.test = None
        self.anchor, self.drain_per_s = new, 0.0
        if new.reset_at is None:
            self.ends_at, self.late_s = new.at + self.nature.lasts_s, 0.0

    def _date_end(self, new: Snapshot, from_answer: bool) -> None:
        """Update when the window ends, as far as reported.

        A call is under way before its reset is computed, so that the end comes later than reported; if resets are
        rounded up it comes sooner. So it is the earliest reported end, but no earlier than the latest one less its
        resolution.
        """
        if new.reset_at is None:
            if not self.ends_at and not self.rolls:
                self.ends_at = new.at + self.nature.lasts_s  # it began before our first call
            return
        reported_end = new.reset_at + (new.grain_s if from_answer else 0.0)
        another = reported_end > self.ends_at + max(0.4 * self.nature.lasts_s, new.blur_s)
        if not self.ends_at or another or (self.opens_at < new.at and reported_end > new.at):
            self.ends_at = self.earliest = reported_end
            self.latest = reported_end - new.grain_s
        elif not from_answer:
            self.earliest, self.latest = min(self.earliest, reported_end), max(self.latest, reported_end - new.grain_s)
            self.ends_at = max(self.earliest, self.latest)

    # What is left

    def remaining(self, now: float, log: CallLog) -> float:
        """Return what should be left now, without what is tried beyond it."""
        kind = self.nature.kind
        opens_at = self.last_opening(now)
        if opens_at > self.dated_at:
            return self.limit - self.cost * log.sent_between(opens_at, now)
        back = 0.0
        if kind is BudgetKind.BUCKET:
            back = (self.refill_per_s - self.drain_per_s) * (now - self.dated_at)
        elif kind is BudgetKind.LOG:
            back = self._slid_back(now) - LOG_PART * self.limit
        return min(self.capacity, self.level + back) - self.cost * (log.sent_total - self.number)

    def last_opening(self, now: float) -> float:
        """Return when the present window began, if windows of known length follow each other; 0 if none has begun
        yet."""
        if (
            not self.rolls
            or not self.ends_at
            or self.nature.kind in (BudgetKind.BUCKET, BudgetKind.LOG)
            or now < self.opens_at
        ):
            return 0.0
        return self.opens_at + (now - self.opens_at) // self.nature.lasts_s * self.nature.lasts_s

    def _slid_back(self, now: float) -> float:
        """Return what a log has given back since the snapshot: what was spent one period ago."""
        lasts_s = self.nature.lasts_s
        return self.meter.between(self.dated_at - lasts_s, now - lasts_s - LOG_GUARD_S)

    def is_low(self, now: float, log: CallLog) -> bool:
        """Return whether so little is left that it may be the cause of a refusal."""
        return self.remaining(now, log) < max(FEW * self.cost, BLUR_PART * self.limit)

    def holds(self, remaining: float) -> bool:
        """Return whether this budget holds calls back."""
        return remaining < self.reserve + self.cost

    @property
    def guessed(self) -> bool:
        """Whether the end is a guess: no reset is reported, and no window was observed to end."""
        return not self.rolls and (self.anchor is None or self.anchor.reset_at is None)

    # For the enforcer

    def bucket(self, now: float, log: CallLog) -> Bucket:
        kind, test = self.nature.kind, self.trust.test
        level, edition = self.level, self.edition
        refills = kind is BudgetKind.BUCKET and (test is None or not test.step)
        if test is not None:
            level = self.cost * (test.calls_left(self.number) + EPSILON)
            if refills:
                level -= (self.refill_per_s - self.drain_per_s) * max(0.0, test.since - self.dated_at)
        elif kind is BudgetKind.LOG:
            back = self._slid_back(now) - LOG_PART * self.limit
            level, edition = min(self.capacity, level + back), edition + int(1000.0 * now)
        opens = self.rolls > 0 and bool(self.ends_at) and kind in (BudgetKind.WINDOW, BudgetKind.UNKNOWN)
        return Bucket(
            name=self.name,
            unit=self.unit,
            model=self.model,
            capacity=self.capacity,
            refill_per_s=self.refill_per_s if refills else 0.0,
            drain_per_s=self.drain_per_s if refills else 0.0,
            paced=kind is BudgetKind.BUCKET and test is None,
            reserve=self.reserve / self.capacity,
            surplus_gain=AT_ONCE,
            snapshot=edition,
            level=level,
            spent=self.spent,
            dated_at=self.dated_at,
            full_at=self.opens_at if opens else 0.0,
            full_every_s=self.nature.lasts_s if opens else 0.0,
        )
