"""Told budgets: what they are is found out from what they tell, and whether they are at all from what is accepted."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from dicast.workers.policy import budget as budget_module
from dicast.workers.policy.budget import SURE, Budget, BudgetKind, Meter, Nature
from dicast.workers.policy.budgets import ReportedBudgets
from dicast.workers.policy.calls import CallLog, Cost, LoggedCall
from dicast.workers.policy.doubt import fell_silent
from dicast.workers.policy.headers import BudgetUnit, Reading, Readings
from dicast.workers.policy.parameters import Bucket
from tests.workers.policy.build import done, sent

LATENCY_S, FEEDBACK_S = 0.5, 0.2


@dataclass
class Window:
    """Gives all back each `every_s`, first at `ends_at`; its reset is the time to its end."""

    limit: int
    every_s: float = 60.0
    ends_at: float = 37.0
    used: int = 0

    def take(self, now: float) -> bool:
        if now >= self.ends_at:
            self.used, self.ends_at = 0, self.ends_at + self.every_s
        self.used += self.used < self.limit
        return self.used <= self.limit

    def left(self, now: float) -> tuple[float, float]:
        return self.limit - self.used, self.ends_at - now


@dataclass
class Continuous:
    """Refills all the time; its reset is the time until it is full."""

    limit: int
    every_s: float = 60.0
    level: float = math.nan
    at: float = 0.0

    def take(self, now: float) -> bool:
        full = float(self.limit)
        self.level = full if math.isnan(self.level) else self.level
        self.level = min(full, self.level + (now - self.at) * self.limit / self.every_s)
        self.at = now
        self.level -= 1.0
        return True

    def left(self, now: float) -> tuple[float, float]:
        return math.floor(self.level), (self.limit - self.level) * self.every_s / self.limit


@dataclass
class Log:
    """Gives back each call a period after it was made; its reset is the time until the oldest leaves."""

    limit: int
    every_s: float = 60.0
    calls: list[float] = field(default_factory=list)

    def take(self, now: float) -> bool:
        self.calls = [*(at for at in self.calls if at > now - self.every_s), now]
        return True

    def left(self, now: float) -> tuple[float, float]:
        return self.limit - len(self.calls), self.calls[0] + self.every_s - now


class Pool:
    """Calls one after the other, of which the provider tells something."""

    def __init__(self, tell: Callable[[float, float], Reading]) -> None:
        self.told, self.log, self.tell = ReportedBudgets(), CallLog(), tell
        self.number = itertools.count(1)

    def call(self, provider: Window | Continuous | Log, at: float, way_s: float = 0.0) -> None:
        """One call that arrives `way_s` after it was sent."""
        provider.take(at + way_s)
        left, reset_s = provider.left(at + way_s)
        self.answer(at, Readings((self.tell(left, reset_s),)))

    def answer(self, at: float, readings: Readings, status: int = 200) -> bool:
        """One call, sent at that instant; whether its refusal was explained."""
        number = next(self.number)
        self.log.sent(sent(f"c{number}", at))
        latency_s = LATENCY_S if status == 200 else 0.1
        event = done(f"c{number}", at + latency_s, at, status, readings=readings, spent=Cost(float(number)))
        trial = self.log.record_outcome(event)
        self.told.observe(event, trial)
        return event.was_refused and self.told.explains(event, trial, self.log, FEEDBACK_S)

    @property
    def kind(self) -> BudgetKind:
        return self.told.known["b:"].nature.kind

    def bucket(self, now: float) -> Bucket:
        return self.told.buckets(now, self.log)[0]


def with_reset(limit: int) -> Callable[[float, float], Reading]:
    return lambda left, reset_s: Reading("b", BudgetUnit.REQUESTS, limit, left, reset_s=reset_s, grain_s=0.001)


def without_reset(limit: int) -> Callable[[float, float], Reading]:
    return lambda left, reset_s: Reading("b", BudgetUnit.REQUESTS, limit, left, 60.0)


def instants(per_s: float, until: float, start: float = 0.0) -> Iterator[float]:
    return (start + number / per_s for number in range(int((until - start) * per_s)))


@pytest.mark.parametrize(
    ("provider", "tell", "kind"),
    [
        (Continuous(600), with_reset(600), BudgetKind.BUCKET),
        (Continuous(14400, 86400.0), with_reset(14400), BudgetKind.BUCKET),
        (Continuous(600), without_reset(600), BudgetKind.BUCKET),
        (Window(600), with_reset(600), BudgetKind.WINDOW),
        (Window(600), without_reset(600), BudgetKind.WINDOW),
    ],
)
def test_what_a_budget_is_shows_within_seconds(
    provider: Window | Continuous, tell: Callable[[float, float], Reading], kind: BudgetKind
) -> None:
    pool = Pool(tell)
    for at in instants(20.0, 5.0):
        pool.call(provider, at)
    assert pool.kind is kind


def test_a_period_of_a_day_is_read_off_the_reset() -> None:
    pool, provider = Pool(with_reset(14400)), Continuous(14400, 86400.0)
    for at in instants(10.0, 10.0):
        pool.call(provider, at)
    assert pool.bucket(10.0).refill_per_s == pytest.approx(14400 / 86400)


def test_a_log_gives_back_what_was_spent_one_period_ago() -> None:
    pool, provider = Pool(with_reset(100)), Log(100)
    for start in (0.0, 60.1, 120.2):
        for at in instants(10.0, start + 6.0, start):
            pool.call(provider, at)
    assert pool.kind is BudgetKind.LOG
    assert pool.bucket(126.5).full_at == 0.0


def test_a_log_is_told_although_calls_arrive_in_another_order_than_sent() -> None:
    nature, ahead = Nature(), [0.0, 4.0, 4.0, -4.0, -4.0] * 12
    for before, after in itertools.pairwise(ahead):
        nature.slides(came_back=3.0 + after - before, due_back=3.0, cost=1.0)
    assert nature.kind is BudgetKind.LOG


def test_a_window_is_full_again_at_its_end_once_that_was_seen() -> None:
    pool, provider = Pool(with_reset(300)), Window(300)
    for at in instants(10.0, 40.0):
        pool.call(provider, at)
    bucket = pool.bucket(40.6)
    assert bucket.full_at == pytest.approx(97.0, abs=0.1)
    assert bucket.full_every_s == 60.0
    assert bucket.refill_per_s == 0.0


@pytest.mark.parametrize("way_s", [0.2, 0.4])
def test_a_call_that_is_under_way_for_long_does_not_bring_a_windows_end_nearer(way_s: float) -> None:
    pool, provider = Pool(with_reset(600)), Window(600)
    for number, at in enumerate(instants(10.0, 45.0)):
        pool.call(provider, at, 0.0 if number % 5 else way_s)
    assert pool.bucket(46.0).full_at == pytest.approx(97.06, abs=0.02)


def test_an_end_in_whole_seconds_is_no_earlier_than_any_telling_allows() -> None:
    pool = Pool(lambda left, reset_s: Reading("b", BudgetUnit.REQUESTS, 600, left, 60.0, math.ceil(reset_s), 1.0))
    provider = Window(600, ends_at=36.5)
    for number, at in enumerate(instants(10.0, 45.0)):
        pool.call(provider, at, 0.0 if number % 5 else 0.4)
    assert pool.bucket(46.0).full_at == pytest.approx(96.56, abs=0.15)


def test_a_call_that_overtakes_others_does_not_begin_a_window() -> None:
    pool, provider = Pool(with_reset(600)), Window(600)
    for at in instants(20.0, 1.0):
        pool.call(provider, at, 0.3)
    for _ in range(30):
        number = next(pool.number)
        pool.log.sent(sent(f"c{number}", 1.4))  # spent, but not there yet
    pool.call(provider, 1.4)
    assert pool.told.known["b:"].rolls == 0


def test_the_end_of_a_window_that_is_not_told_is_seen() -> None:
    pool, provider = Pool(without_reset(600)), Window(600)
    for at in instants(10.0, 40.0):
        pool.call(provider, at)
    assert pool.bucket(40.6).full_at == pytest.approx(97.0, abs=0.2)


def test_our_own_spending_in_a_window_is_not_taken_for_others() -> None:
    pool, provider = Pool(with_reset(4800)), Window(4800)
    for at in instants(60.0, 10.0):
        pool.call(provider, at)
    bucket = pool.bucket(10.0)
    assert bucket.level + bucket.spent == pytest.approx(4800.0, abs=2.0)


def test_milliseconds_without_a_unit_are_found_out() -> None:
    pool, provider = (
        Pool(
            lambda left, reset_s: Reading("b", BudgetUnit.REQUESTS, 2500, left, 60.0, 1000.0 * reset_s, 1.0, bare=True)
        ),
        Continuous(2500),
    )
    for at in instants(60.0, 5.0):
        pool.call(provider, at)
    assert pool.told.known["b:"].anchor is not None
    reset_at = pool.told.known["b:"].anchor.reset_at
    assert reset_at is not None
    assert reset_at < 20.0


def test_a_budget_that_nobody_enforces_is_dropped_after_a_few_calls() -> None:
    pool = Pool(with_reset(10))
    empty = Readings((Reading("b", BudgetUnit.REQUESTS, 10, 0.0, reset_s=1.0, grain_s=1.0),))
    now, sent_calls = 0.0, 0
    while pool.told.buckets(now, pool.log) or not sent_calls:
        now += 0.1
        assert now < 20.0
        pool.told.advance(now, pool.log, FEEDBACK_S)
        bucket = pool.told.buckets(now, pool.log)
        if not bucket or bucket[0].level - (pool.log.sent_total - bucket[0].spent) >= 1.0:
            pool.answer(now, empty)
            sent_calls += 1
    assert "dropped" in pool.told.notes[-1]
    assert sent_calls < 60


def seconds_until_dropped(
    reading: Callable[[float, int], Reading], per_s: float, latency_s: float, feedback_s: float
) -> float:
    """How long calls, at most so many a second, are held back by a budget that is reported and not enforced."""
    pool, now, calls, held_at = Pool(with_reset(1)), 0.0, 0, math.inf
    answers: deque[tuple[float, int, Readings]] = deque()
    while now < 120.0:
        now += 1.0 / per_s
        while answers and answers[0][0] <= now - latency_s:
            at, number, readings = answers.popleft()
            event = done(f"c{number}", at + latency_s, at, readings=readings, spent=Cost(float(number)))
            pool.told.observe(event, pool.log.record_outcome(event))
        pool.told.advance(now, pool.log, feedback_s)
        buckets = pool.told.buckets(now, pool.log)
        if calls and not buckets and pool.told.known:
            return now - held_at
        left = math.inf
        for bucket in buckets:
            left = bucket.level + bucket.refill_per_s * (now - bucket.dated_at) - (calls - bucket.spent)
            held_at = min(held_at, now) if left < 1.0 else held_at
        if left >= 1.0:
            calls += 1
            pool.log.sent(sent(f"c{calls}", now))
            answers.append((now, calls, Readings((reading(now, calls),))))
    return math.inf


def test_a_number_that_falls_for_ever_is_no_log_twice() -> None:
    def falling(_: float, calls: int) -> Reading:
        return Reading("b", BudgetUnit.REQUESTS, 1500, max(0, 1500 - calls), reset_s=1.0, grain_s=1.0)

    assert seconds_until_dropped(falling, 25.1, 0.5, 0.2) < 15.0


def test_a_bucket_that_nobody_enforces_is_dropped_although_it_refills() -> None:
    level, at = 300.0, 0.0

    def refilling(now: float, _: int) -> Reading:
        nonlocal level, at
        level, at = max(0.0, min(300.0, level + 5.0 * (now - at)) - 1.0), now
        return Reading("b", BudgetUnit.REQUESTS, 300, math.floor(level), reset_s=(300.0 - level) / 5.0, grain_s=0.001)

    assert seconds_until_dropped(refilling, 28.0, 0.6, 0.5) < 10.0


def test_a_burst_is_given_back_no_sooner_than_a_period_after_it() -> None:
    meter = Meter()
    for burst in range(4):
        for number in range(1, 34):
            meter.note(0.5 * burst + 0.001 * number, 33.0 * burst + number, 1.0, step=6.0)
    assert [meter.at(at) for at in (0.45, 0.95, 1.45)] == pytest.approx([33.0, 66.0, 99.0], abs=6.0)


def test_a_call_that_waited_for_a_window_is_in_it_although_clocks_differ_by_a_tick() -> None:
    budget = Budget("b", BudgetUnit.REQUESTS, "", limit=10.0, rolls=1, ends_at=100.0)
    opens_at = budget.opens_at
    assert budget.last_opening(opens_at - 1e-9) > 0.0
    assert budget.last_opening(opens_at - 1e-9) == budget.last_opening(opens_at + 59.9)
    assert budget.last_opening(opens_at - 0.05) == 0.0


def test_a_refusal_that_a_budget_tells_of_is_explained_and_settles_its_doubt() -> None:
    pool, provider = Pool(with_reset(50)), Window(50)
    for at in instants(20.0, 2.5):
        pool.call(provider, at)
    empty = Readings((with_reset(50)(0.0, 34.0),))
    assert pool.answer(3.0, empty, status=429)
    now = pool.told.next_at(3.2, pool.log, FEEDBACK_S)
    assert now is not None
    assert now > 30.0


def test_a_refusal_with_room_is_not_explained() -> None:
    pool = Pool(with_reset(50))
    room = Readings((with_reset(50)(40.0, 34.0),))
    pool.answer(0.0, room)
    assert not pool.answer(1.0, room, status=429)


def test_a_budget_of_which_the_refusal_says_nothing_explains_it_by_reckoning() -> None:
    pool, provider = Pool(with_reset(50)), Window(50)
    for at in instants(20.0, 2.5):
        pool.call(provider, at)
    assert pool.answer(3.0, Readings(), status=429)


def test_names_of_unknown_headers_are_kept() -> None:
    pool = Pool(with_reset(50))
    for number in range(20):
        pool.answer(float(number), Readings(unknown=(f"x-quota-{number}",)))
    assert pool.told.unknown[-1] == "x-quota-19"
    assert len(pool.told.unknown) <= 8


@pytest.mark.parametrize(
    ("seconds", "known_s", "found_s"),
    [
        (16.9, 0.0, 10.0),
        (51.0, 0.0, 60.0),
        (1.1, 10.0, 1.0),
        (240.0, 300.0, 300.0),
        (240.0, 0.0, 0.0),
        (0.5, 60.0, 60.0),
    ],
)
def test_a_period_is_the_longest_likely_one_between_two_beginnings(
    seconds: float, known_s: float, found_s: float
) -> None:
    nature = Nature(period_s=known_s)
    nature.began_apart(seconds)
    assert nature.period_s == found_s


def test_a_bucket_that_is_hardly_used_is_no_window_of_seconds() -> None:
    """It is full again every few seconds, as if a window began: one of 10 s would let through six times as many."""
    budget = Budget("requests", BudgetUnit.REQUESTS, "")
    for number in range(4):
        trial = LoggedCall("", number, 1.0 + 10.0 * number, 0)
        reading = Reading("requests", BudgetUnit.REQUESTS, 360.0, 345.0, reset_s=2.5, grain_s=0.001)
        budget.observe(reading, trial, trial.sent_at + 0.5, 60.0 * number, 1.0)
    assert budget.rolls > 1
    assert budget.nature.lasts_s == 60.0


def test_a_period_is_longer_if_three_windows_in_a_row_did_not_begin() -> None:
    nature = Nature(period_s=60.0)
    nature.did_not_begin(2)
    assert (nature.period_s, nature.doubtful) == (60.0, False)
    nature.did_not_begin(3)
    assert (nature.period_s, nature.doubtful) == (300.0, True)
    told = Nature(period_s=60.0, told=True)
    told.did_not_begin(9)
    assert told.period_s == 60.0


def test_a_period_that_was_lengthened_is_known_once_it_was_seen_twice() -> None:
    nature = Nature(period_s=60.0)
    nature.did_not_begin(3)
    for seconds, period_s, doubtful in [(614.0, 300.0, True), (57.0, 60.0, True), (61.0, 60.0, False)]:
        nature.began_apart(seconds)
        assert (nature.period_s, nature.doubtful) == (period_s, doubtful)


class Emptied:
    """A budget of windows of 60 s whose end is not told, known to begin at 60 and 120."""

    def __init__(self) -> None:
        self.budget = Budget("requests", BudgetUnit.REQUESTS, "")
        self._numbers = itertools.count()
        self.spent = 0.0
        for at, left in [(1.0, 100.0), (10.0, 0.0), (60.0, 99.0), (70.0, 0.0), (120.0, 99.0), (130.0, 0.0)]:
            self.answer(at, left, refused=left == 0.0)
        self.budget.nature.leaning = -SURE
        assert (self.budget.rolls, self.budget.nature.period_s, self.budget.guessed) == (2, 60.0, False)

    def answer(self, at: float, left: float, *, refused: bool) -> None:
        trial = LoggedCall("", next(self._numbers), at, 0, refused_at=at + 0.5 if refused else None)
        self.spent += 1.0
        self.budget.observe(Reading("requests", BudgetUnit.REQUESTS, 100.0, left), trial, at + 0.5, self.spent, 1.0)


def test_a_window_that_others_used_up_at_once_is_looked_for_and_its_length_found_again() -> None:
    emptied = Emptied()
    budget = emptied.budget
    emptied.answer(180.05, 0.0, refused=True)
    assert budget.rolls == 2, "that call may have come before the window"
    emptied.answer(181.0, 0.0, refused=True)
    assert (budget.rolls, budget.nature.period_s) == (0, 60.0)
    assert budget.last_opening(241.0) == 0.0, "nothing is taken for granted"
    emptied.answer(301.0, 0.0, refused=True)
    assert (budget.nature.period_s, budget.guessed) == (300.0, True)
    for at, period_s in [(365.0, 300.0), (421.0, 60.0), (481.0, 60.0)]:
        emptied.answer(at, 40.0, refused=False)
        emptied.answer(at + 10.0, 0.0, refused=True)
        assert budget.nature.period_s == period_s
    assert not budget.guessed


def test_a_window_of_which_others_left_little_has_begun() -> None:
    emptied = Emptied()
    emptied.answer(181.0, 30.0, refused=False)
    assert (emptied.budget.rolls, emptied.budget.rolled_at) == (3, 181.0)


def test_a_burst_under_way_begins_no_window() -> None:
    """Its calls arrive in any order: of 40 that were sent, 26 seem to have come back."""
    budget = Budget("requests", BudgetUnit.REQUESTS, "")
    for number, (at, left, spent) in enumerate([(1.0, 450.0, 30.0), (1.4, 436.0, 70.0)]):
        trial = LoggedCall(f"{number}", number, at, 0)
        budget.observe(Reading("requests", BudgetUnit.REQUESTS, 480.0, left), trial, at + 0.5, spent, 1.0)
    assert budget.rolls == 0


def test_a_budget_is_forgotten_only_if_answers_told_nothing_of_it() -> None:
    """With a hundred calls open, a budget of fewer is told late."""
    budget = Budget("tokens", BudgetUnit.OUTPUT_TOKENS, "", limit=50_000.0, cost=900.0, number=40)
    test, log = budget_module.Test(first=100, calls=4, since=0.0, step=2), CallLog(sent_total=104)
    budget.trust.test = test
    assert not fell_silent(budget, log)
    test.repeated = True
    assert fell_silent(budget, log)
    log.sent_total = 80
    assert not fell_silent(budget, log)
