"""Reported budgets: what a provider says about its limits, taken as a hypothesis.

A `Nature` infers how a budget refills, a `Budget` follows one (both in `budget.py`), and `doubt.py` tests it. Here are
the window that only `Retry-After` reveals (`HiddenWindow`), and the collection for one pool that the engine uses, with
what follows from it (`ReportedBudgets`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from statistics import fmean

from dicast.workers.policy.budget import (
    ENOUGH,
    FEW,
    GUARD_S,
    MOST,
    NICE_PERIODS_S,
    USUAL_PERIOD_S,
    Budget,
    Meter,
    Test,
)
from dicast.workers.policy.calls import NEVER, CallLog, Done, LoggedCall
from dicast.workers.policy.doubt import NAME, UNREPORTED, advance, confirmed, fell_silent, is_counted, next_at, rest
from dicast.workers.policy.headers import BudgetUnit, Reading
from dicast.workers.policy.parameters import Bucket, amount

LEAST_S = 2.0
"""The shortest wait that may name a window's end; caps ask for shorter ones."""
AGREE_S, APART = 0.4, 1.5
"""Ends agree that were named within this time, and the steps of seconds. Calls so many times as far apart tell a window
from a constant."""
MOST_UNCONFIRMED = 1
"""So many windows in a row may end before a later call names their end."""
MOST_HINTS = 40
MOST_ENDS = 4
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
    call that found it used up was sent at `refused_at`. Only a call sent later and answered, the last at `answered_at`,
    shows that it is not, since a refusal may be late or lost. It is `sized` once a whole window has begun. Until
    `doubted_until` no window is assumed, because the last one was disproved.

    The end was first named by a call sent at `named_at`; `is_agreed` says that one sent clearly later named it, too.
    Until then the `Retry-After` may be a constant; if it is one, refusals are explained no more, those sent since
    `unexplained_since`.

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
    ends: list[float] = field(default_factory=list)
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
    answered_at: float = NEVER
    named_at: float = NEVER
    is_agreed: bool = False
    unconfirmed: int = 0
    unexplained_since: float | None = None
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
        if not self.accepted.points:
            self.accepted.note(NEVER, 0.0, 0.0)
        apart_s = 0.0 if len(self.accepted.points) < 2 else 0.25
        self.accepted.note(trial.sent_at, self.total, 2.0 * apart_s, apart_s=apart_s)

    def note_answer(self, trial: LoggedCall) -> None:
        """Note a call that was answered, which ends a drought; one that failed may never have arrived."""
        self.answered_at = max(self.answered_at, trial.sent_at)
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
        if self.budget is not None and self.budget.key == UNREPORTED and not self.proven:
            self._drop(at)
        if at < self.doubted_until or (self.budget is not None and self.budget.key != UNREPORTED):
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
        if budget is None or budget.key != UNREPORTED:
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
        if budget.key == UNREPORTED and not self.proven and not self.refused_probes:
            # One drought is no proof, and calls held back would never disprove the window: only a refusal empties it.
            budget.limit = budget.capacity = max(budget.limit, (1.0 + USED_UP_PART) * used + FEW)
        budget.level = max(0.0, budget.limit - used)
        budget.dated_at, budget.number, budget.spent = self.sent_at, self.number, self.spent
        budget.edition += 1

    def hint(self, trial: LoggedCall, now: float, retry_after_s: float | None, grain_s: float) -> Hint | None:
        """Take in a refusal's `Retry-After`, if it may name the end of a window."""
        if retry_after_s is None:
            return None
        hint = Hint(trial.sent_at, now + retry_after_s, grain_s)
        if retry_after_s < LEAST_S and not self.explains(hint):
            return None
        self.hints = [*self.hints, hint][-MOST_HINTS:]
        self._note_end(hint)
        return hint

    def _note_end(self, hint: Hint) -> None:
        """Keep the last named ends, each as early as it was named; whole seconds are rounded up."""
        for index, end in enumerate(self.ends):
            if abs(hint.until - end) <= 2.0 * (hint.grain_s + AGREE_S):
                self.ends[index] = min(end, hint.until)
                return
        self.ends = sorted([*self.ends, hint.until])[-MOST_ENDS:]

    def explains(self, hint: Hint) -> bool:
        """Return whether the known window explains the refusal."""
        return self.budget is not None and self._same(hint, self.budget.ends_at)

    def _same(self, hint: Hint, ends_at: float) -> bool:
        return abs(hint.until - ends_at) <= hint.grain_s + AGREE_S

    def learn(self, refusals: Iterable[LoggedCall], log: CallLog, now: float) -> bool:
        """Return whether a window, known or new, explains these refusals.

        A window that accepted fewer calls than it refused at once is none. Whether the `Retry-After` is a constant is
        told by a later call only (`is_agreed`).
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
        after = [trial for trial in log.since(first) if not trial.was_refused]
        if len(after) > len(trials):
            return False
        grain_s = hints[-1].grain_s
        accepted = min(trial.number for trial in trials) - 1 - (self.refused - len(trials)) + len(after)
        began = until - self._lasts_s(until - first, grain_s)
        if self.budget is None and accepted - self._opening_total(began, grain_s) < max(FEW, len(trials)):
            return False
        self._ends(until, accepted, grain_s, now, until - first)
        self.named_at = first
        self.is_agreed |= self._is_later(last, grain_s, first) or self._repeats(until, grain_s)
        if not self.is_agreed and self.budget is not None:
            self.budget.trust.not_before = first + APART * (grain_s + AGREE_S) + GUARD_S
        return True

    def _ends(self, until: float, accepted: float, grain_s: float, now: float, left_s: float) -> None:
        """Note a window that ends at `until`; it was used up after so many `accepted` calls, with `left_s` to go."""
        budget = self.budget
        if budget is None:
            budget, self.is_agreed = Budget(NAME, BudgetUnit.REQUESTS, self.model), False
            self.budget = budget
            budget.nature.leaning = -MOST
            budget.nature.period_s, budget.rolls = self._lasts_s(left_s, grain_s), 1
        elif until - budget.ends_at < 0.9 * budget.nature.lasts_s:
            self._ends_lie_apart(budget, until - budget.ends_at, grain_s)
        size = accepted - self._opening_total(until - budget.nature.lasts_s, grain_s)
        self._size_is(budget, size if size < budget.limit - FEW else max(size, budget.limit))
        budget.ends_at, budget.late_s, budget.level = until, 0.0, 0.0
        budget.dated_at, budget.number, budget.spent = self.sent_at, self.number, self.spent
        budget.edition, self.refused_at = budget.edition + 1, self.sent_at

    def _ends_lie_apart(self, budget: Budget, gap_s: float, grain_s: float) -> None:
        """Note that a window ended `gap_s` after another one, so that the period is no longer."""
        blur_s = grain_s + AGREE_S
        budget.nature.period_is_less(gap_s)
        if self.is_agreed and 2.0 * blur_s < gap_s < budget.nature.lasts_s - blur_s:
            budget.nature.period_s = float(round(gap_s))

    def _opening_total(self, began: float, grain_s: float) -> float:
        """Return how many calls had been accepted when a window began, then or up to `grain_s` earlier."""
        earliest = self.accepted.at(began - grain_s) or 0.0
        return min(self.opened, earliest) if abs(self.opened_at - began) <= grain_s + AGREE_S else earliest

    def empty(self, hint: Hint, trial: LoggedCall, spent: float, log: CallLog, now: float) -> None:
        """Note that the known window refused a call: it is used up, whatever seemed to be left."""
        budget = self.budget
        assert budget is not None
        self._resize(budget, trial, budget.remaining(now, log))
        budget.ends_at = min(budget.ends_at, hint.until)
        self._emptied(budget, trial, spent)
        self.is_agreed = self.is_agreed or self._is_later(hint.at, hint.grain_s, self.named_at)
        if self.is_agreed:
            self.unconfirmed = 0
            confirmed(budget, now, None)

    @staticmethod
    def _is_later(at: float, grain_s: float, named_at: float) -> bool:
        """Return whether a constant `Retry-After` would clearly name another end `at` a time than when it did first."""
        return at > named_at + APART * (grain_s + AGREE_S)

    def _repeats(self, until: float, grain_s: float) -> bool:
        """Return whether an end was named a likely period earlier, by the refusals of another burst."""
        blur_s = grain_s + AGREE_S
        return any(p > 2.0 * blur_s and abs(until - end - p) <= blur_s for end in self.ends for p in NICE_PERIODS_S)

    def contradicts(self, hint: Hint, now: float) -> bool:
        """Return whether a refusal names a later end before the window is over, and only calls sent at once agreed on
        it; if so, the window is dropped."""
        budget = self.budget
        if budget is None or self.is_agreed or budget.key == UNREPORTED or now >= budget.opens_at:
            return False
        later = self._is_later(hint.at, hint.grain_s, self.named_at)
        if not later or hint.until <= budget.ends_at + hint.grain_s + AGREE_S:
            return False
        self.news = self._drop(now, "each refusal names an end of its own in Retry-After")
        return True

    def begins_anew(self, hint: Hint, trial: LoggedCall, spent: float, log: CallLog, now: float) -> bool:
        """Return whether a refusal names the end of a window after the known one; if so, follow that window."""
        budget = self.budget
        if budget is None or hint.until <= budget.ends_at + hint.grain_s + AGREE_S or now < budget.opens_at:
            return False
        lasts_s = budget.nature.lasts_s
        over = (hint.until - budget.ends_at) % lasts_s
        if min(over, lasts_s - over) > hint.grain_s + AGREE_S:
            shorter_s = self._shorter_period_s(hint.grain_s, lasts_s, hint.until - trial.sent_at)
            shorter_s = shorter_s or self._repeated_period_s(budget, hint, trial)
            if not shorter_s:
                return False
            budget.nature.period_s, budget.trust.test = shorter_s, None
            self._size_is(budget, self.total - self._opening_total(hint.until - shorter_s, hint.grain_s))
        elif self._is_longer(budget, hint, trial):
            budget.nature.period_s = hint.until - budget.ends_at
        else:
            self._resize(budget, trial, budget.remaining(now, log))
        budget.ends_at, self.is_agreed = hint.until, True
        self._emptied(budget, trial, spent)
        confirmed(budget, now, None)
        return True

    def _lasts_s(self, left_s: float, grain_s: float) -> float:
        """Return how long a window probably lasts of which so much is left."""
        usual_s = _period_s(left_s, grain_s)
        return self._shorter_period_s(grain_s, usual_s, left_s) or usual_s

    def _shorter_period_s(self, grain_s: float, lasts_s: float, left_s: float = 0.0) -> float:
        """Return the period, shorter than assumed and of which `left_s` may be left, by which the last named ends lie
        apart; 0 if there is none.

        Two pairs have to agree on a likely period, since one pair may be chance, and three on any other.
        """
        blur_s = grain_s + AGREE_S
        gaps = [later - earlier for earlier, later in itertools.pairwise(self.ends)]
        least_s = max(2.0 * blur_s, left_s - blur_s)
        likely = (p for p in NICE_PERIODS_S if least_s < p < lasts_s)
        agreeing = (p for p in likely if all(abs(gap - p) <= blur_s for gap in gaps[-2:]))
        mean_s = fmean(gaps) if gaps else 0.0
        is_any = len(gaps) == MOST_ENDS - 1 and all(abs(gap - mean_s) <= blur_s for gap in gaps)
        other_s = float(round(mean_s)) if is_any and least_s < mean_s < lasts_s - blur_s else 0.0
        return next(agreeing, other_s) if len(gaps) >= 2 else 0.0

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
        """Set the window's size to the calls that were accepted in it until it was used up. If that is clearly less
        than before, others use the window, so that it is tested again soon."""
        size = budget.limit
        if self.opened_at > NEVER and budget.last_opening(trial.sent_at) == self.opened_at:
            size = self.total - self.opened
        elif remaining > FEW * budget.cost:
            size -= remaining
        if is_counted(budget) and size < (1.0 - USED_UP_PART) * budget.limit:
            budget.trust.strikes, budget.trust.not_before = 0, NEVER
        self._size_is(budget, size)

    def _size_is(self, budget: Budget, size: float) -> None:
        budget.limit = budget.capacity = max(1.0, size)

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
            if budget.key == NAME and not self.is_agreed:
                return self._is_over_unconfirmed(now)
            self.sized, budget.trust.not_before = True, NEVER
        test = budget.trust.test
        in_refused = self.refused_at > budget.last_opening(now)
        before = 0 if test is None else test.passed
        assumed = budget.key == UNREPORTED
        enough = ENOUGH if assumed else max(ENOUGH, budget.limit - before)
        disproved = advance(budget, now, log, feedback_s, enough)
        passed = 0 if budget.trust.test is None else max(0, budget.trust.test.passed - before)
        if in_refused:
            return self._go_on_refused(budget, test, passed, log, now)
        if disproved and assumed:
            return self._drop(now)
        if disproved:
            self.budget, self.sized = None, False
            return "far more calls were accepted than the window of Retry-After holds"
        budget.limit += passed
        budget.capacity = budget.limit
        return ""

    def _go_on_refused(self, budget: Budget, test: Test | None, passed: int, log: CallLog, now: float) -> str:
        """Go on with the test in a window that has refused a call. One that is accepted later disproves the window, or
        shows that it has begun anew. Where an end was named, only an answer counts: refusals may be late or lost."""
        last = log.last()
        if budget.key == UNREPORTED:
            if not passed:
                return ""
            if last is not None and last.sent_at > budget.opens_at - self.blur_s:
                budget.trust.test = None
                self._opens(budget, last.sent_at)
                return ""
        elif self.answered_at <= self.refused_at + AGREE_S:
            if passed and test is not None and self.refused_at >= test.since:
                rest(budget, now)
                budget.edition += 1
            return ""
        self.hints, self.ends = [], []
        return self._drop(now)

    def _is_over_unconfirmed(self, now: float) -> str:
        """Forget a window that ended before a later call could name its end; if that goes on, it is a constant."""
        self.unconfirmed += 1
        if self.unconfirmed > MOST_UNCONFIRMED:
            return self._drop(now, "each refusal names an end of its own in Retry-After")
        self.budget, self.sized = None, False
        return ""

    def take_unexplained(self) -> float | None:
        """Return since when refusals are explained no more, once; None if that is not so."""
        since, self.unexplained_since = self.unexplained_since, None
        return since

    def _drop(self, now: float, why: str = "") -> str:
        """Assume no window for a while, since this one is disproved. Return `why`; by default, calls were accepted."""
        assumed = self.budget is not None and self.budget.key == UNREPORTED
        self.budget, self.sized, self.drought = None, False, None
        self.doubted_until = now + DOUBT_S * 2.0**self.doubts
        self.doubts = min(6, self.doubts + 1)
        if not assumed and not self.is_agreed:
            self.unexplained_since = self.named_at
        end = "of the assumed window" if assumed else "that Retry-After named"
        return why or f"calls were accepted before the end {end}"


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
        if hidden.explains(hint):
            hidden.empty(hint, trial, event.spent.requests, log, now)
            return True
        if hidden.contradicts(hint, now):
            return False
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
