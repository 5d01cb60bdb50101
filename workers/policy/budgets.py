"""Reported budgets: what a provider says about its limits, taken as a hypothesis.

A `Nature` infers how a budget refills, a `Budget` follows one, a `Trust` remembers the results of tests (all in
`budget.py`). Here are the tests (`advance`), the window that only `Retry-After` reveals (`HiddenWindow`), and the
collection for one pool that the engine uses, with what follows from it (`ReportedBudgets`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dicast.workers.policy.budget import (
    FEW,
    GUARD_S,
    MOST,
    MOST_POINTS,
    MOST_STEP,
    NICE_PERIODS_S,
    USUAL_PERIOD_S,
    Budget,
    BudgetKind,
    Meter,
    Test,
)
from dicast.workers.policy.calls import NEVER, CallLog, Done, LoggedCall
from dicast.workers.policy.headers import BudgetUnit, Reading
from dicast.workers.policy.parameters import Bucket, amount

OPENING_PART, OPENING_LEAST, OPENING_MOST = 0.02, 2.0, 10.0
"""The number of calls that test whether a new window has really begun."""
SEARCHES = 8
"""How many times a period an unreported end is tried."""
MOST_SEARCH_S = 300.0
"""An unreported end is tried at least so often."""
PAUSE_S, BUCKET_PAUSE_S = 900.0, 6 * 3600.0
"""How long a confirmed budget is not tested. Testing a bucket costs more, since its reserve is used up first."""
LOST_S = 10.0
"""Answers that are still missing after this time count as lost."""
SOON_S = 0.5
"""The first wait after a window did not end when reported."""


def advance(budget: Budget, now: float, log: CallLog, feedback_s: float) -> bool:
    """Go on with the test, or begin one if it is due; returns whether the budget is disproved."""
    if not budget.trust.believed:
        return False
    remaining, test = budget.remaining(now, log), budget.trust.test
    if test is not None:
        has_refilled = budget.nature.kind is BudgetKind.LOG and remaining >= budget.cost
        if has_refilled or remaining >= budget.reserve + 2.0 * budget.cost + budget.cost * test.calls:
            budget.trust.test = None
            budget.edition += 1
            return False
        return _go_on(budget, test, remaining, now, log, feedback_s)
    if budget.holds(remaining) and now >= due_at(budget, now) - 1e-9:
        if budget.nature.kind is BudgetKind.BUCKET and remaining >= (FEW + 1.0) * budget.cost:
            _approach(budget, remaining, now, log)
        else:
            _try(budget, _first_step(budget, now), 0, 0, remaining, now, log)
    return False


def _go_on(budget: Budget, test: Test, remaining: float, now: float, log: CallLog, feedback_s: float) -> bool:
    """Go on with a test if it has been passed so far; returns whether the budget is disproved."""
    if not test.step:
        if budget.number >= test.first + test.calls:
            _try(budget, 1, 0, 0, remaining, now, log)
        return False
    done_at = test.done_at(log, feedback_s)
    if done_at is None or now < done_at - 1e-9:
        return False
    if _is_unseen_opening(budget, test):
        if now >= test.since + LOST_S or not log.is_any_open(test.first, test.first + test.calls):
            budget.trust.test = Test(log.sent_total, 2 * test.calls, now, 2 * test.step, repeated=True)
            budget.edition += 1
        return False
    opening = _is_opening(test)
    if budget.trust.passed(test) and _disproved(budget, test, now):
        return True
    if budget.trust.test is not None:
        step = 1 if opening else 2 * test.step
        passed = test.passed + (test.step if budget.level < budget.cost else 0)
        _try(budget, step, passed, test.refused, remaining, now, log, test.began)
    return False


def _is_opening(test: Test) -> bool:
    """Return whether the test is to show that a window has begun."""
    return test.step >= OPENING_LEAST and not test.passed


def _is_unseen_opening(budget: Budget, test: Test) -> bool:
    """Return whether no answer to the calls of such a test has told of the budget."""
    return _is_opening(test) and budget.number <= test.first


def fell_silent(budget: Budget, log: CallLog) -> bool:
    """Return whether a whole window's calls were sent to see it begin, and no answer told of the budget any more."""
    test = budget.trust.test
    if test is None or not test.repeated or not _is_unseen_opening(budget, test):
        return False
    return budget.cost * (1 + log.sent_total - budget.number) >= budget.limit


def _approach(budget: Budget, remaining: float, now: float, log: CallLog) -> None:
    """Use up the reserve almost entirely; the next snapshot then shows exactly how much is left."""
    budget.trust.test = Test(log.sent_total, int(remaining / budget.cost - FEW), now, 0)
    budget.edition += 1


def _try(
    budget: Budget,
    step: int,
    passed: int,
    refusals: int,
    remaining: float,
    now: float,
    log: CallLog,
    began: float | None = None,
) -> None:
    """Let `step` calls be sent beyond what is left."""
    step = min(MOST_STEP, step)
    calls = step + max(0, int(remaining / budget.cost))
    began = now if began is None else began
    budget.trust.test = Test(log.sent_total, calls, now, step, passed, refusals, began)
    budget.edition += 1


def _disproved(budget: Budget, test: Test, now: float) -> bool:
    """Return whether calls accepted beyond the budget disprove it: it is still reported to be empty, and a log would
    not have given back so much."""
    if budget.level >= budget.cost:
        return False
    lasts_s = budget.nature.lasts_s
    slid_back = budget.meter.between(test.began - lasts_s, now - lasts_s)
    if (
        budget.nature.kind is BudgetKind.BUCKET
        or budget.rolls
        or budget.nature.slid_once
        or slid_back < 0.5 * budget.cost * (test.passed + test.step)
    ):
        return True
    budget.nature.found_sliding()
    budget.trust.test = None
    return False


def due_at(budget: Budget, now: float) -> float:
    """Return when the next test is due. A window whose end was reported but never observed is tested when it should be
    over."""
    opens_at = budget.opens_at
    windowed = budget.nature.kind in (BudgetKind.WINDOW, BudgetKind.UNKNOWN)
    if windowed and not budget.rolls and opens_at and not budget.search_s:
        return min(budget.trust.not_before, opens_at) if budget.dated_at < opens_at else budget.trust.not_before
    return budget.trust.not_before


def _first_step(budget: Budget, now: float) -> int:
    windowed = budget.nature.kind in (BudgetKind.WINDOW, BudgetKind.UNKNOWN)
    if windowed and budget.opens_at and now >= budget.opens_at and not budget.rolls and not budget.search_s:
        return int(min(OPENING_MOST, max(OPENING_LEAST, OPENING_PART * budget.limit / budget.cost)))
    return 1


def confirmed(budget: Budget, now: float, retry_at: float | None) -> bool:
    """Note that a call was refused while the budget is empty; returns whether the budget is the cause, and not an
    exception among many accepted calls."""
    if budget.trust.test is not None and not budget.trust.test.fails():
        return False
    opens_at = budget.opens_at
    overdue = bool(opens_at) and now >= opens_at and not budget.last_opening(now) > budget.dated_at
    unknown = budget.nature.kind in (BudgetKind.WINDOW, BudgetKind.UNKNOWN) and (
        overdue or not opens_at or budget.guessed
    )
    if not unknown:
        pause_s = BUCKET_PAUSE_S if budget.nature.kind is BudgetKind.BUCKET else max(PAUSE_S, budget.nature.lasts_s)
        budget.trust.confirmed(now, pause_s)
    elif budget.trust.test is not None or now >= budget.trust.not_before:
        first_s = budget.nature.lasts_s / SEARCHES
        if overdue and not budget.guessed:
            first_s = min(SOON_S, first_s)
        budget.search_s = min(max(first_s, 1.25 * budget.search_s), MOST_SEARCH_S)
        budget.trust.test = None
        budget.trust.not_before = now + budget.search_s
    if retry_at is not None and budget.guessed and retry_at > now:
        budget.ends_at, budget.late_s, budget.trust.not_before = retry_at, 0.0, retry_at + GUARD_S
    budget.edition += 1
    return True


def next_at(budget: Budget, now: float, log: CallLog, feedback_s: float) -> float | None:
    """Return when `advance` will do something, or more of a log comes back."""
    if not budget.trust.believed:
        return None
    test = budget.trust.test
    if test is not None:
        return test.done_at(log, feedback_s)
    if not budget.holds(budget.remaining(now, log)):
        return None
    due = due_at(budget, now)
    if budget.nature.kind is BudgetKind.LOG:
        due = min(due, now + budget.nature.lasts_s / MOST_POINTS)
    return due


NAME = "retry-after"
UNREPORTED = "refusals"
"""The name of a window that no header and no `Retry-After` tells of."""
LEAST_S = 2.0
"""The shortest wait that may name a window's end; caps ask for shorter ones."""
AGREE_S = 0.4
MOST_HINTS = 40
LEAST_HINTS = 2
DOUBT_S = 60.0
LEAST_REFUSALS, LEAST_ALONE, DROUGHT_S = 5, 2, 2.0
"""The refusals in a row, those of them while no other call was open, and the time that they last, after which a window
may have been used up."""
SHORTER_PART, OLDEST, USED_UP_PART = 0.15, 1.5, 0.1
"""How exactly two droughts are a likely period apart; the age, in periods, up to which the last drought's end is the
window's beginning; the part of a window that may be left when it is found used up."""
LEAST_PROBES, MOST_PROBES = 3, 8
"""The refused probes that prove an assumed window, and after which the wait for the next grows no longer."""


@dataclass(slots=True)
class Hint:
    """A refusal's hint: a call sent `at` was refused, and its `Retry-After` named `until`, in steps of `grain_s`."""

    at: float
    until: float
    grain_s: float


@dataclass(slots=True)
class Drought:
    """Calls sent from `first` to `last` were all refused; nothing said when calls would be accepted again. `alone` of
    the `refusals` were of calls sent while no other was open, so that no cap refused them."""

    first: float
    last: float
    refusals: int = 0
    alone: int = 0


def _period_s(left_s: float, grain_s: float) -> float:
    """Return how long a window lasts of which so much is left: a minute unless that is more."""
    if left_s <= USUAL_PERIOD_S:
        return USUAL_PERIOD_S
    return next((period_s for period_s in NICE_PERIODS_S if period_s >= left_s - grain_s), NICE_PERIODS_S[-1])


@dataclass(slots=True)
class HiddenWindow:
    """The hidden window of one pool, and the evidence for it.

    `accepted` counts the calls accepted so far. The newest answered call is the `number`th, sent at `sent_at` for
    `model`, whose counter stood at `spent`.

    `budget` is the window, if there is one. The present window began at `opened_at`, after `opened` calls; the last
    call that found it used up was sent at `refused_at`. It is `sized` once a whole window has begun. Until
    `doubted_until` no window is assumed, because the last one was disproved.

    `drought` is the present drought, if there is one; the last ended at `drought_ended_at`. An assumed window is
    `proven` once `refused_probes` enough were refused from when it was used up to its end. It may have begun `blur_s`
    earlier than assumed.

    Only refusals reveal it: the `Retry-After` of many of them points to one instant. If a cap on open calls refuses,
    every refusal names an instant of its own, such as a second from now. If a window is used up, all refusals name its
    end. So a few refusals that agree reveal a window: no more calls will be accepted before its end, and what was
    accepted since it began is its size. This is tested with single calls. A size that was learned too small (the window
    was half over, or others used it) grows by what is accepted beyond it.
    """

    hints: list[Hint] = field(default_factory=list)
    accepted: Meter = field(default_factory=Meter)
    total: float = 0.0
    refused: int = 0
    number: int = 0
    sent_at: float = NEVER
    model: str = ""
    spent: float = 0.0
    budget: Budget | None = None
    sized: bool = False
    opened_at: float = NEVER
    opened: float = 0.0
    refused_at: float = NEVER
    doubted_until: float = NEVER
    doubts: int = 0
    drought: Drought | None = None
    drought_ended_at: float = NEVER
    refused_probes: int = 0
    blur_s: float = 0.0
    proven: bool = False
    news: str = ""

    def note(self, trial: LoggedCall, was_refused: bool, model: str, spent: float) -> None:
        """Count an answered call; our own counter for its model stood at `spent` when it was sent."""
        self.refused += was_refused
        before, newest = self.total, trial.number > self.number
        if newest:
            self.number, self.sent_at, self.model, self.spent = trial.number, trial.sent_at, model, spent
        self.total = float(self.number - self.refused)
        if self.budget is not None and newest:
            self._follow(self.budget, before)
        self.accepted.thin()
        apart_s = 0.0 if len(self.accepted.points) < 2 else 0.25
        self.accepted.note(trial.sent_at, self.total, 2.0 * apart_s, apart_s=apart_s)

    def note_answer(self, trial: LoggedCall) -> None:
        """Note a call that was answered, which ends a drought; one that failed may never have arrived."""
        if self.drought is not None and trial.sent_at > self.drought.first + AGREE_S:
            self._drought_ends(self.drought, trial.sent_at)

    def note_unexplained(self, trial: LoggedCall, log: CallLog) -> None:
        """Count a refusal that nothing explains, and that does not say when calls will be accepted again."""
        drought = self.drought = self.drought or Drought(trial.sent_at, trial.sent_at)
        drought.first, drought.last = min(drought.first, trial.sent_at), max(drought.last, trial.sent_at)
        drought.refusals += 1
        drought.alone += log.open_at_provider(trial) == 0

    def note_refused_probe(self, trial: LoggedCall, log: CallLog) -> None:
        """Note that the probe of an open breaker was refused: a drought goes on, if there is one."""
        if self.drought is not None:
            self.note_unexplained(trial, log)

    def _drought_ends(self, drought: Drought, at: float) -> None:
        """A call sent `at` was accepted. Assume a window that began then, if the drought was one."""
        self.drought = None
        if (
            at < drought.last
            or drought.refusals < LEAST_REFUSALS
            or drought.alone < LEAST_ALONE
            or at - drought.first < DROUGHT_S
        ):
            return
        before, self.drought_ended_at = self.drought_ended_at, at
        if self.budget is not None and self.budget.name == UNREPORTED and not self.proven:
            self._drop(at)
        if at < self.doubted_until or (self.budget is not None and self.budget.name != UNREPORTED):
            return
        lasts_s = _period_s(drought.last - drought.first, 0.0)
        shorter = (
            p for p in NICE_PERIODS_S if DROUGHT_S < p < lasts_s and abs((at - before) / p - 1.0) <= SHORTER_PART
        )
        lasts_s = next(shorter, lasts_s)
        began = before if at - before < OLDEST * lasts_s else at - lasts_s
        size = self.accepted.between(began, drought.first)
        if size < max(FEW, drought.refusals):
            return
        budget = self.budget = Budget(UNREPORTED, BudgetUnit.REQUESTS, self.model)
        budget.nature.leaning, budget.nature.period_s, budget.rolls = -MOST, lasts_s, 1
        budget.limit = budget.capacity = size
        self.sized, self.refused_probes, self.proven, self.blur_s = True, 0, False, at - drought.last + AGREE_S
        self._opens(budget, at)
        self.news = f"refusals reveal a window of {lasts_s:.0f} s, {size:.0f} calls"

    def _opens(self, budget: Budget, at: float) -> None:
        """Have a window begin with a call that was sent `at`."""
        budget.ends_at = at - 2.0 * GUARD_S
        self.proven, self.refused_probes = self.proven or self.refused_probes >= LEAST_PROBES, 0
        self.opened_at, self.opened = budget.last_opening(at), self.accepted.at(at - GUARD_S) or 0.0
        self._follow(budget, self.opened)

    def explains_unreported(self, trial: LoggedCall, spent: float, log: CallLog, now: float) -> bool:
        """Return whether a window that nothing tells of is used up, so that it explains a refusal."""
        budget = self.budget
        if budget is None or budget.name != UNREPORTED:
            return False
        opening = budget.last_opening(trial.sent_at)
        if opening and budget.remaining(now, log) > USED_UP_PART * budget.limit + FEW:
            return False
        if opening:
            self._resize(budget, trial, budget.remaining(now, log))
            budget.ends_at = opening + budget.nature.lasts_s - GUARD_S
        self._emptied(budget, trial, spent)
        confirmed(budget, now, None)
        self.refused_probes += 1
        if not self.proven:
            budget.trust.not_before = now + 0.5 * 2.0 ** min(self.refused_probes, MOST_PROBES)
        return True

    def _follow(self, budget: Budget, before: float) -> None:
        """Update what is left of the window: its size less what was accepted since it began, after `before` calls."""
        opening = budget.last_opening(self.sent_at)
        if not opening:
            return
        if opening > self.opened_at:
            self.opened_at, self.opened = opening, before
            self.proven, self.refused_probes = self.proven or self.refused_probes >= LEAST_PROBES, 0
        used = self.total - self.opened
        if budget.name == UNREPORTED and not self.proven and not self.refused_probes:
            # One drought is no proof, and calls held back would never disprove the window: only a refusal empties it.
            budget.limit = budget.capacity = max(budget.limit, (1.0 + USED_UP_PART) * used + FEW)
        budget.level = max(0.0, budget.limit - used)
        budget.dated_at, budget.number, budget.spent = self.sent_at, self.number, self.spent
        budget.edition += 1

    def hint(self, trial: LoggedCall, now: float, retry_after_s: float | None, grain_s: float) -> Hint | None:
        """Take in a refusal's `Retry-After`, if it may name the end of a window."""
        if retry_after_s is None or retry_after_s < LEAST_S:
            return None
        hint = Hint(trial.sent_at, now + retry_after_s, grain_s)
        self.hints = [*self.hints, hint][-MOST_HINTS:]
        return hint

    def explains(self, hint: Hint | None, now: float) -> bool:
        """Return whether the known window explains the refusal."""
        return self.budget is not None and hint is not None and self._same(hint, self.budget.ends_at)

    def _same(self, hint: Hint, ends_at: float) -> bool:
        return abs(hint.until - ends_at) <= hint.grain_s + AGREE_S

    def learn(self, refusals: Iterable[LoggedCall], log: CallLog, now: float) -> bool:
        """Return whether a window, known or new, explains these refusals.

        A window that accepted fewer calls than it refused at once is none: such a `Retry-After` is a constant.
        """
        trials = list(refusals)
        if not trials or now < self.doubted_until:
            return False
        first, last = min(t.sent_at for t in trials), max(t.sent_at for t in trials)
        hints = [hint for hint in self.hints if first <= hint.at <= last]
        if len(hints) < max(LEAST_HINTS, 0.6 * min(len(trials), MOST_HINTS)):
            return False
        until = min(hint.until for hint in hints)
        if not all(self._same(hint, until) for hint in hints) or until <= now:
            return False
        began = until - self._lasts_s(until - first, hints[-1].grain_s)
        if self.budget is None and self.accepted.between(began, first) < max(FEW, len(trials)):
            return False
        after = [trial for trial in log.since(first) if not trial.was_refused]
        if len(after) > len(trials):
            return False
        self._ends(until, first, hints[-1].grain_s, now)
        return True

    def _ends(self, until: float, first: float, grain_s: float, now: float) -> None:
        """Note a window that ends at `until`; the first call that it refused was sent at `first`."""
        budget = self.budget
        if budget is None:
            budget = self.budget = Budget(NAME, BudgetUnit.REQUESTS, self.model)
            budget.nature.leaning = -MOST
            budget.nature.period_s, budget.rolls = self._lasts_s(until - first, grain_s), 1
        elif until - budget.ends_at < 0.9 * budget.nature.lasts_s:
            budget.nature.period_is_less(until - budget.ends_at)
        size = max(1.0, self.accepted.between(until - budget.nature.lasts_s, first))
        budget.limit = size if size < budget.limit - FEW else max(size, budget.limit)
        budget.capacity = budget.limit
        budget.ends_at, budget.late_s, budget.level = until, 0.0, 0.0
        budget.dated_at, budget.number, budget.spent = self.sent_at, self.number, self.spent
        budget.edition, self.refused_at = budget.edition + 1, self.sent_at

    def empty(self, hint: Hint, trial: LoggedCall, spent: float, log: CallLog, now: float) -> None:
        """Note that the known window refused a call: it is used up, whatever seemed to be left."""
        budget = self.budget
        assert budget is not None
        self._resize(budget, trial, budget.remaining(now, log))
        budget.ends_at = min(budget.ends_at, hint.until)
        self._emptied(budget, trial, spent)
        confirmed(budget, now, None)

    def begins_anew(self, hint: Hint, trial: LoggedCall, spent: float, log: CallLog, now: float) -> bool:
        """Return whether a refusal names the end of a window after the known one; if so, follow that window."""
        budget = self.budget
        if budget is None or hint.until <= budget.ends_at + hint.grain_s + AGREE_S or now < budget.opens_at:
            return False
        lasts_s = budget.nature.lasts_s
        over = (hint.until - budget.ends_at) % lasts_s
        if min(over, lasts_s - over) > hint.grain_s + AGREE_S:
            shorter_s = self._shorter_period_s(hint.grain_s, lasts_s) or self._repeated_period_s(budget, hint, trial)
            if not shorter_s:
                return False
            budget.nature.period_s, budget.trust.test = shorter_s, None
            began = hint.until - shorter_s - hint.grain_s
            budget.limit = budget.capacity = max(1.0, self.accepted.between(began, trial.sent_at))
        elif self._is_longer(budget, hint, trial):
            budget.nature.period_s = hint.until - budget.ends_at
        else:
            self._resize(budget, trial, budget.remaining(now, log))
        budget.ends_at = hint.until
        self._emptied(budget, trial, spent)
        confirmed(budget, now, None)
        return True

    def _lasts_s(self, left_s: float, grain_s: float) -> float:
        """Return how long a window probably lasts of which so much is left."""
        usual_s = _period_s(left_s, grain_s)
        return self._shorter_period_s(grain_s, usual_s) or usual_s

    def _shorter_period_s(self, grain_s: float, lasts_s: float) -> float:
        """Return a likely period shorter than assumed by which the last named ends lie apart; 0 if there is none.

        Two pairs have to agree, since one pair may be chance.
        """
        blur_s = grain_s + AGREE_S
        ends: list[float] = []
        for other in sorted(other.until for other in self.hints):
            if not ends or other > ends[-1] + 2.0 * blur_s:
                ends.append(other)
        gaps = [later - earlier for earlier, later in itertools.pairwise(ends[-3:])]
        periods = [period_s for period_s in NICE_PERIODS_S if 2.0 * blur_s < period_s < lasts_s]
        agreeing = (p for p in periods if all(abs(gap - p) <= blur_s for gap in gaps))
        return next(agreeing, 0.0) if len(gaps) == 2 else 0.0

    def _repeated_period_s(self, budget: Budget, hint: Hint, trial: LoggedCall) -> float:
        """Return the likely period by which the named end lies after the known one, if about as many calls were
        accepted in between as the window holds; 0 if that is not so."""
        gap_s, blur_s = hint.until - budget.ends_at, hint.grain_s + AGREE_S
        accepted = self.accepted.between(budget.ends_at, trial.sent_at)
        if abs(accepted - budget.limit) > USED_UP_PART * budget.limit + FEW:
            return 0.0
        periods = (p for p in NICE_PERIODS_S if 2.0 * blur_s < p < budget.nature.lasts_s and abs(gap_s - p) <= blur_s)
        return next(periods, 0.0)

    def _is_longer(self, budget: Budget, hint: Hint, trial: LoggedCall) -> bool:
        """Return whether windows are longer than assumed and last from the known end to the one named now: it is
        further off than one window, or a window would have begun in which nothing was accepted."""
        lasts_s, blur_s = budget.nature.lasts_s, hint.grain_s + AGREE_S
        if hint.until - budget.ends_at < 1.5 * lasts_s:
            return False
        in_vain = self.opened_at > budget.opens_at + blur_s and self.total - self.opened < FEW
        return hint.until - trial.sent_at > lasts_s + blur_s or in_vain

    def _resize(self, budget: Budget, trial: LoggedCall, remaining: float) -> None:
        """Set the window's size to the calls that were accepted in it until it was used up."""
        if self.opened_at > NEVER and budget.last_opening(trial.sent_at) == self.opened_at:
            budget.limit = max(1.0, self.total - self.opened)
        elif remaining > FEW * budget.cost:
            budget.limit = max(1.0, budget.limit - remaining)
        budget.capacity = budget.limit

    def _emptied(self, budget: Budget, trial: LoggedCall, spent: float) -> None:
        self.refused_at = max(self.refused_at, trial.sent_at)
        if trial.number >= budget.number:
            budget.level, budget.dated_at, budget.number, budget.spent = 0.0, trial.sent_at, trial.number, spent

    def advance(self, now: float, log: CallLog, feedback_s: float) -> str:
        """Go on with the test; returns a sentence about its result, '' if there is none."""
        budget = self.budget
        if budget is None:
            return ""
        if not self.sized and now >= budget.opens_at:
            self.sized, budget.trust.not_before = True, NEVER
        test = budget.trust.test
        in_refused = self.refused_at > budget.last_opening(now)
        before = 0 if test is None else test.passed
        if advance(budget, now, log, feedback_s) and not in_refused:
            if budget.name == UNREPORTED:
                return self._drop(now)
            self.budget, self.sized = None, False
            return "far more calls were accepted than the window of Retry-After holds"
        after = budget.trust.test
        if after is None or after.passed <= before:
            return ""
        if in_refused:
            last = log.last()
            if budget.name == UNREPORTED and last is not None and last.sent_at > budget.opens_at - self.blur_s:
                budget.trust.test = None
                self._opens(budget, last.sent_at)
                return ""
            self.hints = []
            return self._drop(now)
        budget.limit += after.passed - before
        budget.capacity = budget.limit
        return ""

    def _drop(self, now: float) -> str:
        """Assume no window for a while, since this one is disproved. Return what disproved it."""
        assumed = self.budget is not None and self.budget.name == UNREPORTED
        self.budget, self.sized, self.drought = None, False, None
        self.doubted_until = now + DOUBT_S * 2.0**self.doubts
        self.doubts = min(6, self.doubts + 1)
        end = "of the assumed window" if assumed else "that Retry-After named"
        return f"calls were accepted before the end {end}"


SCALE_WEIGHT = 0.02
SCALE_MOST = 4.0
COST_WEIGHT = 0.05
MOST_BUDGETS = 32
MOST_UNKNOWN, MOST_NOTES = 8, 12


@dataclass(slots=True)
class ReportedBudgets:
    """The reported budgets of one pool. `token_scale` is the ratio of used to estimated tokens.

    `room_at` is when a call was last refused although every reported budget had room for it: then something is bounded
    that the headers do not show, usually the same rate counted per second. `room_per_s` is that rate. `unknown` are
    names of headers that could not be read. `notes` are the findings, latest last; `news` are those not yet handed
    over.
    """

    known: dict[str, Budget] = field(default_factory=dict)
    hidden: HiddenWindow = field(default_factory=HiddenWindow)
    token_scale: float = 1.0
    tokens_per_call: float = 0.0
    room_at: float = NEVER
    room_per_s: float = 0.0
    unknown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    news: list[str] = field(default_factory=list)

    def observe(self, event: Done, trial: LoggedCall) -> bool:
        """Take in an outcome's readings and tokens; returns whether there were readings, all with room for the call."""
        self.hidden.note(trial, event.was_refused, event.model, event.spent.requests)
        if event.ok:
            self.hidden.note_answer(trial)
        used = event.used.input_tokens + event.used.output_tokens
        if event.ok and used > 0 and event.estimated_tokens > 0:
            scale = min(SCALE_MOST, used / event.estimated_tokens)
            self.token_scale += SCALE_WEIGHT * (scale - self.token_scale)
        if used > 0:
            weight = COST_WEIGHT if self.tokens_per_call else 1.0
            self.tokens_per_call += weight * (used - self.tokens_per_call)
        for name in event.readings.unknown:
            if name not in self.unknown:
                self.unknown = [*self.unknown, name][-MOST_UNKNOWN:]
        readings = event.readings.budgets
        for reading in readings:
            cost = (
                1.0 if reading.unit is BudgetUnit.REQUESTS else max(1.0, self.tokens_per_call or event.estimated_tokens)
            )
            budget = self._budget(reading, event.model)
            budget.observe(reading, trial, event.at, amount(reading.unit, event.spent), cost)
            budget.refused += event.was_refused
        return bool(readings) and all(self._has_room(reading, event) for reading in readings)

    def _budget(self, reading: Reading, model: str) -> Budget:
        name = f"{reading.budget}:{model}"
        budget = self.known.get(name)
        if budget is None:
            if len(self.known) >= MOST_BUDGETS:
                del self.known[min(self.known, key=lambda other: self.known[other].dated_at)]
            budget = self.known[name] = Budget(reading.budget, reading.unit, model)
        return budget

    def _has_room(self, reading: Reading, event: Done) -> bool:
        return reading.remaining > 0.02 * reading.limit + self._need(reading, event, 2.0)

    def _need(self, reading: Reading, event: Done, times: float) -> float:
        return 1.0 if reading.unit is BudgetUnit.REQUESTS else times * event.estimated_tokens * self.token_scale

    def explains(self, event: Done, trial: LoggedCall, log: CallLog, feedback_s: float) -> bool:
        """Return whether a budget explains a refusal: it is reported to be empty, or computed to be if the refusal has
        no reading."""
        now, readings = event.at, {f"{r.budget}:{event.model}": r for r in event.readings.budgets}
        retry_s = event.readings.retry_after_s
        retry_at = None if retry_s is None or retry_s < 1.0 else now + retry_s
        explained = False
        for name, budget in self.known.items():
            if budget.model not in ("", event.model):
                continue
            reading = readings.get(name)
            if reading is not None:
                empty = reading.remaining < self._need(reading, event, 1.2)
            else:
                empty = trial.sent_at > budget.dated_at and budget.remaining(now, log) < FEW * budget.cost
            if not empty:
                continue
            if budget.trust.believed:
                explained |= confirmed(budget, now, retry_at)
            elif reading is not None and budget.trust.is_enforced_again(log, now, feedback_s):
                budget.trust.restore()
                self._note(f"{budget.name} is trusted again: calls are refused for it")
        return self._hidden_explains(event, trial, log, explained=explained) or explained

    def _hidden_explains(self, event: Done, trial: LoggedCall, log: CallLog, *, explained: bool) -> bool:
        """Return whether a window that is not reported explains a refusal. If a reported budget has `explained` it, or
        the server is down, it is no evidence for a window that nothing tells of."""
        hidden, now = self.hidden, event.at
        hint = hidden.hint(trial, now, event.readings.retry_after_s, event.readings.retry_grain_s)
        if hint is None:
            if explained or not event.was_refused or any(budget.is_low(now, log) for budget in self._believed()):
                return False
            if hidden.explains_unreported(trial, event.spent.requests, log, now):
                return True
            hidden.note_unexplained(trial, log)
            return False
        if hidden.budget is None:
            return False
        if hidden.explains(hint, now):
            hidden.empty(hint, trial, event.spent.requests, log, now)
            return True
        return hidden.begins_anew(hint, trial, event.spent.requests, log, now)

    def names_one_end(self, refusals: Iterable[LoggedCall], log: CallLog, now: float) -> bool:
        """Return whether a window that is not reported explains an episode of refusals."""
        if any(budget.is_low(now, log) for budget in self._believed()):
            return False
        before = self.hidden.budget
        learned = self.hidden.learn(refusals, log, now)
        if learned and before is None and self.hidden.budget is not None:
            budget = self.hidden.budget
            self._note(f"Retry-After reveals a window of {budget.nature.lasts_s:.0f} s, {budget.limit:.0f} calls")
        return learned

    def refused_with_room(self, now: float) -> bool:
        """Note a refusal although all budgets had room; returns whether it is the second within a few seconds and the
        rate is known."""
        repeated = now - self.room_at < 3.0
        self.room_at = now
        name = self.tightest_requests()
        self.room_per_s = 0.0 if name is None else self.known[name].refill_per_s
        return repeated and self.room_per_s > 0

    def tightest_requests(self) -> str | None:
        """Return the name in `known` of the tightest believed budget of requests; None if there is none."""
        names = (
            name for name, budget in self.known.items() if budget.trust.believed and budget.unit is BudgetUnit.REQUESTS
        )
        return min(names, key=lambda name: self.known[name].refill_per_s, default=None)

    @property
    def is_any_believed(self) -> bool:
        """Whether the provider tells a budget that is believed."""
        return any(True for _ in self._believed())

    def _believed(self) -> Iterator[Budget]:
        return (budget for budget in self.known.values() if budget.trust.believed)

    def advance(self, now: float, log: CallLog, feedback_s: float) -> str:
        """Let time pass; returns a finding as a sentence, '' if there is none."""
        finding = self.hidden.advance(now, log, feedback_s) or self.hidden.news
        self.hidden.news = ""
        for name, budget in list(self.known.items()):
            if fell_silent(budget, log):
                del self.known[name]
                finding = f"{budget.name} is told no more, and calls beyond it are accepted"
            elif advance(budget, now, log, feedback_s):
                budget.trust.drop(now)
                terms = f"{budget.limit:.0f} per {budget.nature.lasts_s:.0f} s"
                finding = f"{budget.name} dropped: {terms} is reported, but calls beyond it are accepted"
        if finding:
            self._note(finding)
        return finding

    def _note(self, text: str) -> None:
        self.notes = [*self.notes, text][-MOST_NOTES:]
        self.news = [*self.news, text][-MOST_NOTES:]

    def next_at(self, now: float, log: CallLog, feedback_s: float) -> float | None:
        """Return when time alone changes something."""
        budgets = [*self.known.values(), *([self.hidden.budget] if self.hidden.budget else [])]
        times = [at for budget in budgets if (at := next_at(budget, now, log, feedback_s)) is not None]
        return min(times, default=None)

    def buckets(self, now: float, log: CallLog) -> list[Bucket]:
        buckets = [budget.bucket(now, log) for budget in self._believed()]
        if self.hidden.budget is not None:
            buckets.append(self.hidden.budget.bucket(now, log))
        return buckets
