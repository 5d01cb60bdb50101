"""One reported budget: what is left of it now, when it comes back, and whether it is enforced at all.

A header is a snapshot of the instant at which its call arrived, one latency ago. The call's outcome repeats our
counters as they stood at its send; so what we spent since then is known exactly, and a late snapshot costs nothing.
What is missing beyond our own spending was used by other tenants of the account (`drain_per_s`, averaged).

What is left may be spent at once. How it comes back depends on the budget's `nature`; until that is known, it is
treated as a window whose end has to be observed. While it holds calls back, a few are sent all the same now and then:
`doubt.py` tests it so, and `Trust` keeps the results.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from dicast.workers.policy.calls import NEVER, CallLog, LoggedCall
from dicast.workers.policy.headers import BudgetUnit, Reading
from dicast.workers.policy.parameters import Bucket

MOST_POINTS = 120
AT_ONCE_S = 0.01
"""After a pause, the counter begins to grow this long before the next point."""


@dataclass(slots=True)
class Meter:
    """Points (instant, count) in the order of time, some of the past ones left out.

    They are a counter's recent past.
    """

    points: list[tuple[float, float]] = field(default_factory=list)

    def note(self, at: float, total: float, pause_s: float, *, apart_s: float = 0.0, step: float = 0.0) -> None:
        """Note that the counter stood at `total`. A point is left out within `apart_s` of the last one, or if the
        counter grew by less than `step` since; the oldest are dropped. After `pause_s` it grew at once.

        The counter may fall a little, when a counted call turns out not to count; if it falls far, it was reset.
        """
        if self.points and total < 0.5 * self.points[-1][1]:
            self.points = []
        if self.points and (at < self.points[-1][0] + apart_s or total < self.points[-1][1] + step):
            return
        if self.points and at > self.points[-1][0] + pause_s:
            self.points.append((at - AT_ONCE_S, self.points[-1][1]))
        self.points.append((at, total))
        if len(self.points) > MOST_POINTS:
            del self.points[: len(self.points) - MOST_POINTS]

    def thin(self) -> None:
        """Make room by keeping only every second point of the older half."""
        if len(self.points) >= MOST_POINTS:
            half = MOST_POINTS // 2
            self.points = self.points[:half:2] + self.points[half:]

    def at(self, instant: float) -> float | None:
        """Return what the counter stood at, interpolated between two points; None before the first one."""
        if not self.points or instant < self.points[0][0]:
            return None
        before = self.points[0]
        for point in self.points:
            if point[0] > instant:
                part = (instant - before[0]) / (point[0] - before[0])
                return before[1] + part * (point[1] - before[1])
            before = point
        return before[1]

    def between(self, start: float, end: float) -> float:
        """Return by how much the counter grew; growth before the first point is unknown and does not count."""
        first, last = self.at(start), self.at(end)
        if last is None:
            return 0.0
        return last - (self.points[0][1] if first is None else first)


NICE_PERIODS_S = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 18000.0, 86400.0, 604800.0, 2592000.0)
"""Periods that a provider would choose."""
USUAL_PERIOD_S = 60.0
SURE, MOST = 2.0, 6.0
"""The evidence from which on something counts as known, and the most that is kept."""
JITTER_S = 0.15
"""By how much the time that calls are under way may vary."""
MOST_BLUR = 0.45
"""Likely periods differ by a factor of three or more, so an estimate with a smaller error identifies one."""
SEEN_LATE = 1.3
"""The end of a window is looked for every eighth of a period, so that its beginning is seen late."""
MOST_MISSED = 3
"""So many windows in a row that did not begin when they should have are longer than assumed."""
ENOUGH_BACK = 20.0
"""The number of calls that have to come back before a log can be recognised: a few always arrive out of order."""


class BudgetKind(StrEnum):
    UNKNOWN = "unknown"
    BUCKET = "bucket"
    WINDOW = "window"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot: what was left when a call sent `at` arrived, our counter `spent` then, and the reported reset as an
    instant."""

    at: float
    remaining: float
    spent: float
    reset_at: float | None = None
    grain_s: float = 0.0

    @property
    def blur_s(self) -> float:
        """By how much two resets of the same window may differ."""
        return self.grain_s + JITTER_S


@dataclass(slots=True)
class Nature:
    """The evidence on how a budget refills. `leaning` above 0 speaks for a bucket, below 0 for a window; `sliding`
    above 0 speaks for a log.

    `slid` says that it is a log, `slid_once` that it was taken for one in error. `period_s` is reported by the provider
    (`told`), or inferred; 0 if it is unknown. `guess_s` is a period seen once. One that windows did not keep was
    lengthened, and is `doubtful` until it is seen twice. `came_back` is what came back of late, `due_back` what would
    have come back in a log.

    The same three header names serve a bucket that refills continuously, a window that gives everything back at its
    end, and a log that gives back each call one window after it was made. They differ in how the reported reset moves:

    * spending moves a bucket's reset away, since reset is the time until it is full;
    * a window's reset comes nearer with the clock, whatever is spent;

    and in how `remaining` moves: a bucket gives back all the time, a window nothing and then all, a log what was spent
    one period ago.
    """

    leaning: float = 0.0
    sliding: float = 0.0
    slid: bool = False
    slid_once: bool = False
    period_s: float = 0.0
    told: bool = False
    guess_s: float = 0.0
    doubtful: bool = False
    came_back: float = 0.0
    due_back: float = 0.0

    @property
    def kind(self) -> BudgetKind:
        if self.leaning >= SURE:
            return BudgetKind.BUCKET
        if self.slid:
            return BudgetKind.LOG
        return BudgetKind.WINDOW if self.leaning <= -SURE else BudgetKind.UNKNOWN

    @property
    def lasts_s(self) -> float:
        """The period, or the usual one if it is unknown."""
        return self.period_s or USUAL_PERIOD_S

    def period_is(self, seconds: float, within: float) -> bool:
        """Return whether `seconds` match the reported period within a part, or twice in a row the same likely period,
        which is no coincidence."""
        if self.told:
            return abs(seconds / self.period_s - 1.0) <= within
        nice = next((p for p in NICE_PERIODS_S if abs(seconds / p - 1.0) <= within), 0.0)
        repeated, self.guess_s = nice > 0.0 and nice == self.guess_s, nice
        if repeated:
            self.period_s = nice
        return repeated

    def lasts_longer(self, seconds: float) -> None:
        """Note that a window's end is so far off, so that its period is no shorter."""
        if not self.told and self.kind in (BudgetKind.WINDOW, BudgetKind.UNKNOWN) and seconds > 1.1 * self.lasts_s:
            self.period_s = next((p for p in NICE_PERIODS_S if p >= 0.95 * seconds), NICE_PERIODS_S[-1])

    def period_is_less(self, seconds: float) -> None:
        """Note that two windows ended so far apart, so that the period is no longer."""
        nice = next((p for p in NICE_PERIODS_S if abs(seconds / p - 1.0) <= 0.15), 0.0)
        if nice and not self.told and nice < self.lasts_s:
            self.period_s = nice

    def began_apart(self, seconds: float) -> None:
        """Note that the beginnings of two windows were seen so far apart, the first one perhaps late: the period is the
        longest likely one up to about that."""
        nice = max((p for p in NICE_PERIODS_S if p <= SEEN_LATE * seconds), default=0.0)
        if nice and not self.told and nice <= self.lasts_s:
            self.doubtful &= nice != self.guess_s
            self.period_s = self.guess_s = nice

    def did_not_begin(self, missed: int) -> None:
        """Note that so many windows in a row did not begin when they should have: others have used them up at once, or
        the period is longer, unless it is told."""
        if missed >= MOST_MISSED and not self.told:
            self.period_s = next((p for p in NICE_PERIODS_S if p > self.lasts_s), self.lasts_s)
            self.doubtful, self.guess_s = True, 0.0

    def jumped(self) -> None:
        """Note that everything came back at once, which no bucket and no log does."""
        self.leaning = max(-MOST, self.leaning - 1.0)
        self._slide(-1.0)
        self.came_back = self.due_back = 0.0

    def found_sliding(self) -> None:
        """Note that more was accepted than a window had left, and no more than a log gave back."""
        if not self.slid:
            self._slide(SURE - self.sliding)

    def _slide(self, votes: float) -> None:
        """Add votes for a log. A log stays one until most speaks against it, since its returns are counted only
        roughly."""
        self.sliding = max(-MOST, min(MOST, self.sliding + votes))
        was_log = self.slid
        self.slid = self.sliding >= SURE or (was_log and self.sliding > -SURE)
        self.slid_once |= was_log and not self.slid

    def compare(self, old: Snapshot, new: Snapshot, limit: float, cost: float) -> None:
        """Learn from two snapshots of one window; a call takes about `cost`."""
        votes = self._votes_of_reset(old, new, limit, cost) + self._votes_of_level(old, new, limit, cost)
        self.leaning = max(-MOST, min(MOST, self.leaning + votes))

    def _votes_of_reset(self, old: Snapshot, new: Snapshot, limit: float, cost: float) -> float:
        """Return the votes of the reset.

        Rules, first match wins: less is left and the reset is further off, in proportion -> bucket; the reset came
        nearer by the time that passed, and nothing came back -> window; else no vote.
        """
        if old.reset_at is None or new.reset_at is None or new.reset_at <= new.at or self.slid:
            return 0.0
        elapsed, fell, blur_s = new.at - old.at, old.remaining - new.remaining, new.blur_s
        away = (new.reset_at - new.at) - (old.reset_at - old.at)
        if fell >= 5.0 * cost and away > 2.0 * blur_s:
            within = blur_s / away + 2.0 * cost / fell + 0.03
            return 2.0 if within < MOST_BLUR and self.period_is(limit * away / fell, within) else 0.0
        if elapsed > 2.0 * blur_s and abs(away + elapsed) <= blur_s and fell >= -cost:
            came_back = new.spent - old.spent - fell
            return -2.0 if came_back < 0.3 * limit * elapsed / self.lasts_s + cost else 0.0
        return 0.0

    def _votes_of_level(self, old: Snapshot, new: Snapshot, limit: float, cost: float) -> float:
        """Return the votes of what came back, compared with a bucket's refill; none if the budget is full, or was
        empty."""
        elapsed = new.at - old.at
        refill = limit * elapsed / self.lasts_s
        if refill < 3.0 * cost or new.remaining >= 0.95 * limit or new.remaining < cost:
            return 0.0
        part = (new.spent - old.spent + new.remaining - old.remaining) / refill
        weight = 1.0 if self.period_s else 0.5
        return weight if 0.6 <= part <= 2.0 else -weight if part <= 0.25 else 0.0

    def slides(self, came_back: float, due_back: float, cost: float) -> None:
        """Compare what came back with what was spent one period ago: a log gives back exactly that."""
        self.came_back += came_back
        self.due_back += due_back
        if self.due_back < ENOUGH_BACK * cost:
            return
        like = abs(self.came_back - self.due_back) <= 0.35 * self.due_back + 2.0 * cost
        self._slide(1.0 if like else -1.0)
        self.came_back = self.due_back = 0.0


ENOUGH, MOST_STEP = 15, 64
"""The number of calls beyond what is allowed that disprove a budget if all are accepted, and the most sent at once."""
RESTORE_AFTER = 2.0
"""The number of refusals explained by a dropped budget that restore it; it doubles each time the budget is dropped."""
RECENT_S = 5.0
OUTWEIGHS = 4
"""One refusal outweighs fewer accepted calls than this."""
PATIENCE, MOST_STRIKES = 2.0, 4


@dataclass(slots=True)
class Test:
    """A test of a budget: since `since`, `calls` may be sent after the `first`, the last `step` of them beyond the
    budget.

    `passed` calls were accepted beyond it in earlier steps, `refused` were refused. The first step began at `began`. A
    step of 0 only uses up what is left of the budget. It is `repeated`, with more calls, if no answer to those before
    told of the budget.
    """

    first: int
    calls: int
    since: float
    step: int = 1
    passed: int = 0
    refused: int = 0
    began: float = 0.0
    repeated: bool = False

    def done_at(self, log: CallLog, feedback_s: float) -> float | None:
        """Return when all its calls count as accepted, if none is refused; None until all of them are sent."""
        last = log.nth_sent_at(self.first + self.calls)
        return None if last is None else last + feedback_s

    def calls_left(self, number: int) -> int:
        """Return how many calls may be sent after the `number`th."""
        return max(0, self.first + self.calls - number)

    def fails(self) -> bool:
        """Count a refused call; returns whether the refusals outweigh the accepted calls."""
        self.refused += 1
        return self.refused * OUTWEIGHS > self.passed


@dataclass(slots=True)
class Trust:
    """The trust in a budget. `test` is the running test; the next one begins `not_before` then. `strikes` tests have
    confirmed the budget.

    `dropped_at` is when the budget was dropped, None if it is trusted. `revoked` counts how often it was dropped.

    Reported budgets are trusted as long as they agree with what is accepted. A budget that holds calls back is tested:
    a few calls go beyond what it allows, first one, then two, four, eight. If one of them is refused, the budget is
    real, and the next test waits longer. If all are accepted, the budget is dropped: it is not enforced, or its numbers
    are too low.
    """

    test: Test | None = None
    not_before: float = NEVER
    strikes: int = 0
    dropped_at: float | None = None
    revoked: int = 0

    @property
    def believed(self) -> bool:
        return self.dropped_at is None

    def passed(self, test: Test, enough: float) -> bool:
        """Return whether a test of which all calls were accepted is enough to disprove the budget."""
        return test.passed + test.step >= enough

    def confirmed(self, now: float, pause_s: float, most_strikes: int = MOST_STRIKES) -> None:
        """Note that a call beyond the budget was refused. The pause doubles so many times at most."""
        if self.test is None and now < self.not_before:
            return
        self.test = None
        self.not_before = now + pause_s * PATIENCE**self.strikes
        self.strikes = min(most_strikes, self.strikes + 1)

    def drop(self, now: float) -> None:
        self.test, self.dropped_at = None, now
        self.revoked = min(8, self.revoked + 1)

    def is_enforced_again(self, log: CallLog, now: float, feedback_s: float) -> bool:
        """Return whether most of the latest calls were refused while a dropped budget is reported to be empty, so that
        it should be restored."""
        assert self.dropped_at is not None
        refusals = accepted = 0
        for trial in log.since(max(self.dropped_at, now - RECENT_S)):
            refusals += trial.was_refused
            accepted += not trial.was_refused and trial.sent_at < now - feedback_s
        return refusals >= RESTORE_AFTER * 2.0**self.revoked and refusals > accepted

    def restore(self) -> None:
        self.dropped_at, self.test, self.not_before, self.strikes = None, None, NEVER, 0


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
UNUSED_PART = 0.9
"""While more than this part is left, no window's beginning is seen: calls of a burst arrive in any order, so that some
seem to have come back."""
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
    ends, the last at `rolled_at`. An end that is not reported is tried again after `search_s`. The last accepted call
    was sent at `accepted_at`. If `milliseconds` is above 0, bare numbers are milliseconds. `edition` counts the
    versions for the enforcer; `cost` is what one call takes.
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
    accepted_at: float = 0.0
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
        if not trial.was_refused:
            self.accepted_at = max(self.accepted_at, sent_at)
        if sent_at < self.dated_at or (sent_at == self.dated_at and trial.number < self.number):
            return
        if self.unit is not BudgetUnit.REQUESTS:
            self.cost = cost
        self._take_terms(reading)
        reset_at, grain_s = self._reset(reading, sent_at, answered_at)
        taken = spent - self.cost * self.refused
        new = Snapshot(sent_at, reading.remaining, taken, reset_at, grain_s)
        if reset_at is None and trial.was_refused and reading.remaining < self.cost:
            self._find_missed(sent_at)
        fine = MOST_POINTS - 10
        self.meter.note(sent_at, taken, 2.0 * self.nature.lasts_s / fine, step=self.limit / fine)
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
        if new.reset_at is None and self.level > UNUSED_PART * self.limit:
            return False
        if new.reset_at is not None and not self._is_later_window(new.reset_at, new):
            return False
        least = max(FEW * self.cost, BLUR_PART * self.limit)
        if new.reset_at is None and self.nature.kind is BudgetKind.WINDOW and self.level < self.cost:
            return new.remaining >= least  # others may have used most of it
        came_back = new.remaining - self.level + new.spent - self.taken
        return came_back >= max(least, 0.5 * (self.limit - self.level))

    def _is_later_window(self, reported_end: float, new: Snapshot) -> bool:
        """Return whether a reported end is that of a later window; slow calls report the same end a little later."""
        further_s = reported_end - self.ends_at
        return further_s > max(
            new.blur_s, LEAST_WINDOW_S, ANOTHER_PART * min(reported_end - new.at, self.nature.lasts_s)
        )

    def _find_missed(self, now: float) -> None:
        """Note that a call was refused because nothing is left. If none was accepted since a window should have begun,
        its beginning is looked for again."""
        if not self.opens_at or now < self.opens_at + JITTER_S:
            return
        if self.rolls:
            opening = self.last_opening(now - JITTER_S)
            if opening <= self.accepted_at:
                return
            self.ends_at += opening + AT_ONCE_S - self.opens_at
            self.rolls, self.search_s, self.trust.not_before = 0, 0.0, now
        self.nature.did_not_begin(1 + int((now - self.opens_at) // self.nature.lasts_s))

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
        if self.rolled_at and new.reset_at is None:
            self.nature.began_apart(new.at - self.rolled_at)
        elif self.rolled_at and self.level <= UNUSED_PART * self.limit:  # a bucket that is hardly used looks like this
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
        yet. Calls that waited for it are in it, although clocks may say that they were sent an instant before."""
        first = self.opens_at - AT_ONCE_S
        if not self.rolls or not self.ends_at or self.nature.kind in (BudgetKind.BUCKET, BudgetKind.LOG) or now < first:
            return 0.0
        return first + (now - first) // self.nature.lasts_s * self.nature.lasts_s

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
        """Whether the end is a guess: no reset is reported, and the period is not known for sure."""
        unsure = not self.nature.period_s or self.nature.doubtful
        return unsure and (self.anchor is None or self.anchor.reset_at is None)

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
