"""Tests of budgets: calls beyond what a budget allows show whether it is enforced, and whether a window has begun.

`Test` and `Trust` (`budget.py`) hold a test and the results; here are its steps (`advance`), when they come, and what a
refusal says (`confirmed`).
"""

from __future__ import annotations

from dicast.workers.policy.budget import (
    ENOUGH,
    FEW,
    GUARD_S,
    MOST_POINTS,
    MOST_STEP,
    Budget,
    BudgetKind,
    Test,
)
from dicast.workers.policy.calls import CallLog

NAME = "retry-after"
UNREPORTED = "refusals"
"""The name of a window that no header and no `Retry-After` tells of."""
OPENING_PART, OPENING_LEAST, OPENING_MOST = 0.02, 2.0, 10.0
"""The number of calls that test whether a new window has really begun."""
SEARCHES = 8
"""How many times a period an unreported end is tried."""
MOST_SEARCH_S = 300.0
"""An unreported end is tried at least so often."""
PAUSE_S, BUCKET_PAUSE_S = 900.0, 6 * 3600.0
"""How long a confirmed budget is not tested. Testing a bucket costs more, since its reserve is used up first."""
COUNTED_CALLS, COUNTED_STRIKES, COUNTED_STEP = 200.0, 2, 16
"""A window whose size was counted, since only `Retry-After` tells of it, is tested once in so many calls, which double
so many times, and by so many at once."""
LOST_S = 10.0
"""Answers that are still missing after this time count as lost."""
SOON_S = 0.5
"""The first wait after a window did not end when reported."""


def advance(budget: Budget, now: float, log: CallLog, feedback_s: float, enough: float = ENOUGH) -> bool:
    """Go on with the test, or begin one if it is due; returns whether the budget is disproved, by `enough` calls."""
    if not budget.trust.believed:
        return False
    remaining, test = budget.remaining(now, log), budget.trust.test
    if test is not None:
        has_refilled = budget.nature.kind is BudgetKind.LOG and remaining >= budget.cost
        if has_refilled or remaining >= budget.reserve + 2.0 * budget.cost + budget.cost * test.calls:
            budget.trust.test = None
            budget.edition += 1
            return False
        return _go_on(budget, test, remaining, now, log, feedback_s, enough)
    if budget.holds(remaining) and now >= due_at(budget, now) - 1e-9:
        if budget.nature.kind is BudgetKind.BUCKET and remaining >= (FEW + 1.0) * budget.cost:
            _approach(budget, remaining, now, log)
        else:
            _try(budget, _first_step(budget, now), 0, 0, remaining, now, log)
    return False


def _go_on(
    budget: Budget, test: Test, remaining: float, now: float, log: CallLog, feedback_s: float, enough: float
) -> bool:
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
    if budget.trust.passed(test, enough) and _disproved(budget, test, now):
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
    step = min(COUNTED_STEP if is_counted(budget) else MOST_STEP, step)
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
        rest(budget, now)
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


def is_counted(budget: Budget) -> bool:
    """Return whether only `Retry-After` tells of the budget, so that its size was counted."""
    return budget.key == NAME


def rest(budget: Budget, now: float) -> None:
    """Test a confirmed budget no more for a while."""
    lasts_s = budget.nature.lasts_s
    if is_counted(budget):
        budget.trust.confirmed(now, max(lasts_s, COUNTED_CALLS / budget.refill_per_s), COUNTED_STRIKES)
    else:
        is_bucket = budget.nature.kind is BudgetKind.BUCKET
        budget.trust.confirmed(now, BUCKET_PAUSE_S if is_bucket else max(PAUSE_S, lasts_s))


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
