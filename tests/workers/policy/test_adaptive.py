"""The default engine where decisions come late: what was granted meanwhile belongs to the old limit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dicast.workers.policy.adaptive_state import AcceptedLater, AdaptiveState, SingleCalls
from dicast.workers.policy.budget import Budget
from dicast.workers.policy.budgets import ReportedBudgets
from dicast.workers.policy.calls import NO_CONTENT, UNAVAILABLE, Event
from dicast.workers.policy.governor import PoolGovernor
from dicast.workers.policy.headers import BudgetUnit, Reading, Readings
from dicast.workers.policy.profiles import PoolConfig
from dicast.workers.policy.rate import NAME, LearnedRate
from tests.workers.policy.build import done, sent


def engine_of(governor: PoolGovernor) -> AdaptiveState:
    state = governor.state.engine
    assert isinstance(state, AdaptiveState)
    return state


def served(governor: PoolGovernor, calls: int, start: float = 0.0) -> float:
    """Some calls, one after the other, all answered in a second; returns the instant after."""
    now = start
    for number in range(calls):
        now = start + number * 0.2
        events: list[Event] = [sent(f"s{start}-{number}", now, 0, governor.state.limit)]
        if number >= 5:
            events.append(done(f"s{start}-{number - 5}", now, now - 1.0))
        governor.decide(events, now)
    return now + 0.2


def refused_at_once(governor: PoolGovernor, now: float, open_before: int, calls: int) -> float:
    """Calls that leave together and are refused a little later."""
    limit = governor.state.limit
    governor.decide([sent(f"r{now}-{n}", now, open_before + n, limit) for n in range(calls)], now)
    refusals = [done(f"r{now}-{n}", now + 0.1, now, 429, open_before=open_before + n) for n in range(calls)]
    governor.decide(refusals, now + 0.1)
    return now + 0.1


def judged(governor: PoolGovernor) -> float:
    """Let a diagnosis come; returns its instant."""
    now = governor.next_at()
    assert now is not None
    governor.decide([], now)
    return now


def test_grants_are_held_until_after_the_verdict_is_due() -> None:
    governor = PoolGovernor(PoolConfig(ceiling=40, limit=20))
    now = refused_at_once(governor, served(governor, 30), 17, 4)
    due = governor.next_at()
    assert due is not None
    assert governor.decide([], now).hold_until > due + 0.2
    judged(governor)
    assert governor.decide([], due).hold_until == 0.0


def test_refusals_that_slipped_through_before_a_cut_was_in_force_cut_no_more() -> None:
    governor = PoolGovernor(PoolConfig(ceiling=40, limit=20))
    old = governor.state.limit
    refused_at_once(governor, served(governor, 30), 17, 4)
    now = judged(governor)
    cut = governor.state.limit
    assert cut < old
    events: list[Event] = [sent(f"late{n}", now + 0.01, cut + n, old) for n in range(4)]
    events += [done(f"late{n}", now + 0.05, now + 0.01, 429, open_before=cut + n) for n in range(4)]
    governor.decide(events, now + 0.06)
    assert governor.state.limit == cut
    assert engine_of(governor).judging_since is None


def test_refusals_under_the_new_limit_do_count() -> None:
    governor = PoolGovernor(PoolConfig(ceiling=40, limit=20))
    refused_at_once(governor, served(governor, 30), 17, 4)
    now = judged(governor)
    cut = governor.state.limit
    refused_at_once(governor, now + 0.01, cut - 4, 4)
    judged(governor)
    assert governor.state.limit < cut


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.floats(0.01, 1.0)), min_size=5, max_size=80))
def test_a_change_of_leader_changes_nothing(steps: list[tuple[bool, float]]) -> None:
    """Decisions made from the stored state at every turn are those of one that never stopped."""
    config = PoolConfig(ceiling=40)
    one, now = PoolGovernor(config), 0.0
    raw = PoolGovernor(config).state.to_json()
    for number, (refused, wait_s) in enumerate(steps):
        now += wait_s
        status = 429 if refused else 200
        events: list[Event] = [
            sent(f"c{number}", now, number % 12, one.state.limit),
            done(f"c{number}", now + 0.005, now, status, open_before=number % 12),
        ]
        next_leader = PoolGovernor(config, type(one.state).from_json(raw))
        assert next_leader.decide(events, now + 0.005) == one.decide(events, now + 0.005)
        assert next_leader.next_at() == one.next_at()
        raw = next_leader.state.to_json()


def test_a_refusal_at_the_top_never_raises_the_limit() -> None:
    governor = PoolGovernor(PoolConfig(ceiling=40, limit=20))
    refused_at_once(governor, served(governor, 30), 17, 4)
    now = judged(governor) + 5.0
    limit = governor.state.limit
    governor.decide([sent("top", now, limit + 3, limit)], now)
    governor.decide([done("top", now + 0.1, now, 429, open_before=limit + 3)], now + 0.1)
    assert governor.state.limit <= limit


@pytest.mark.parametrize("ceiling", [10, 11, 100])
def test_slow_start_ends_below_the_ceiling(ceiling: int) -> None:
    governor, now = PoolGovernor(PoolConfig(ceiling=ceiling)), 0.0
    reached = []
    for number in range(3000):
        now += 0.05
        limit = governor.state.limit
        governor.decide([sent(f"c{number}", now, limit - 1, limit)], now)
        if number >= 10:
            governor.decide([done(f"c{number - 10}", now, now - 0.5, 200, open_before=limit - 1)], now)
        if engine_of(governor).growth.slow_start:
            reached.append(governor.state.limit)
    assert max(reached) <= max(10, 0.9 * ceiling)
    assert governor.state.limit == ceiling


@pytest.mark.parametrize(
    ("ceiling", "limit", "floor", "first"),
    [(5, None, 1, 5), (30, None, 1, 10), (50, None, 1, 10), (100, None, 1, 20), (250, None, 1, 20),
     (500, None, 1, 20), (5000, None, 1, 200), (100, 7, 1, 7),
     (100, None, 30, 30)],
)  # fmt: skip
def test_the_first_limit_is_a_fifth_of_the_ceiling_within_bounds(
    ceiling: int, limit: int | None, floor: int, first: int
) -> None:
    assert PoolGovernor(PoolConfig(ceiling=ceiling, limit=limit, floor=floor)).state.limit == first


def test_a_little_less_than_was_held_for_a_moment_in_slow_start_is_no_collapse() -> None:
    """In a step's burst the order of arrival is blurred: 54 seemed to be held where the cap is 48."""
    governor, now = PoolGovernor(PoolConfig(ceiling=200, limit=40)), 0.0
    for number in range(54):
        now = number * 0.01
        governor.decide([sent(f"s{number}", now, number, governor.state.limit)], now)
    refused_at_once(governor, now + 0.01, 54, 4)
    now = judged(governor)
    assert governor.state.limit == 54
    refused_at_once(governor, now + 0.2, 48, 8)
    judged(governor)
    single_calls = engine_of(governor).single_calls
    assert single_calls is None or single_calls.after_cut, "no collapse"
    assert governor.state.limit == 48


def test_an_episode_holds_all_calls_from_the_first_refused_on_in_whatever_order_they_are_heard_of() -> None:
    governor = PoolGovernor(PoolConfig(ceiling=80, limit=40))
    now = served(governor, 30)
    limit = governor.state.limit
    opens = [30, 34, 35, 36]
    governor.decide([sent(f"c{n}", now + 0.01 * n, opens[n], limit) for n in range(4)], now + 0.04)
    for number in (1, 2, 3, 0):  # the first one sent is the last one heard of
        at = now + 0.1 + 0.01 * (number or 4)
        governor.decide([done(f"c{number}", at, now + 0.01 * number, 429, open_before=opens[number])], at)
    judged(governor)
    assert engine_of(governor).episode == now


def test_the_last_step_of_slow_start_is_judged_like_the_others() -> None:
    """Not undone: the refusals tell how much of it was too much."""
    governor, now = PoolGovernor(PoolConfig(ceiling=100, limit=60)), 0.0
    opened = 0
    while governor.state.limit < 90:
        now += 0.05
        governor.decide([sent(f"c{opened}", now, min(opened, governor.state.limit - 1), governor.state.limit)], now)
        opened += 1
    calls = [sent(f"n{n}", now + 0.01 * (n + 1), 60 + n, 90) for n in range(20)]
    governor.decide(calls, now + 0.2)
    refusals = [done(f"n{n}", now + 0.3, now + 0.01 * (n + 1), 429, open_before=60 + n) for n in range(15, 20)]
    governor.decide(refusals, now + 0.3)
    judged(governor)
    assert governor.state.limit == 75


def turned_away(
    governor: PoolGovernor, now: float, calls: int, latency_s: float = 0.1, status: int = UNAVAILABLE
) -> float:
    """Calls that leave one after the other from the top of the limit, and are answered with 503, or so."""
    for _ in range(calls):
        limit = governor.state.limit
        governor.decide([sent(f"t{now}", now, limit - 1, limit)], now)
        now += latency_s
        governor.decide([done(f"t{now - latency_s}", now, now - latency_s, status, open_before=limit - 1)], now)
    return now


@pytest.mark.parametrize("status", [UNAVAILABLE, NO_CONTENT])
def test_calls_that_are_turned_away_at_once_are_a_cap_and_open_no_breaker(status: int) -> None:
    governor = PoolGovernor(PoolConfig(ceiling=40, limit=20))
    before = governor.state.limit
    turned_away(governor, served(governor, 30), 6, status=status)
    judged(governor)
    assert governor.breaker.closed
    assert governor.state.limit <= before


@pytest.mark.parametrize("status", [UNAVAILABLE, NO_CONTENT])
def test_the_breaker_opens_if_a_lower_limit_does_not_keep_calls_from_being_turned_away(status: int) -> None:
    governor = PoolGovernor(PoolConfig(ceiling=40, limit=20))
    turned_away(governor, served(governor, 30), 6, status=status)
    turned_away(governor, judged(governor) + 0.1, 5, status=status)
    assert not governor.breaker.closed


def test_a_server_that_has_never_answered_is_not_full() -> None:
    """Its pages may be those of a web site: no call should wait for a place there."""
    governor = PoolGovernor(PoolConfig(ceiling=40, limit=20))
    turned_away(governor, 0.0, 60, status=NO_CONTENT)
    assert governor.breaker.closed
    assert governor.state.limit >= 20


def test_unavailable_after_a_while_is_a_failure() -> None:
    governor = PoolGovernor(PoolConfig(ceiling=40, limit=20))
    turned_away(governor, served(governor, 30), 5, latency_s=3.0)
    assert not governor.breaker.closed


def waved(governor: PoolGovernor, now: float, calls: int, refused_each: int) -> float:
    """Calls from the top of the limit, of which every so many is refused for overload and the others are accepted."""
    for _ in range(calls):
        now += 0.05
        limit = governor.state.limit
        governor.decide([sent(f"w{now}", now, limit - 1, limit)], now)
        if engine_of(governor).log.sent_total % refused_each == 0:
            governor.decide([done(f"w{now}", now + 0.04, now, 529, open_before=limit - 1)], now + 0.04)
    return now


def test_a_wave_of_overload_at_any_level_lowers_the_limit_until_it_is_over() -> None:
    governor = PoolGovernor(PoolConfig(ceiling=40, limit=20))
    now = waved(governor, served(governor, 60), 60, 3)
    engine = engine_of(governor)
    before = engine.overload.limit_before
    assert before > 20 and 0.7 * before - 1 <= governor.state.limit < before
    assert governor.next_at() == engine.overload.borne_until > now
    over_at = engine.overload.refused_at + 6.0 * engine.timescales.rtt_s
    governor.decide([], over_at)
    assert engine.overload.limit_before == 0.0 and governor.state.limit == before
    assert engine.reason == "the provider is no longer overloaded"


def test_a_wave_whose_calls_are_forgotten_is_borne() -> None:
    """Refusals may come back later than calls are remembered."""
    governor = PoolGovernor(PoolConfig(ceiling=40, limit=20))
    now = waved(governor, served(governor, 60), 20, 3)
    engine = engine_of(governor)
    engine.judging_since, engine.episode = now, now - 0.5
    engine.log.forget(now + 1.0)
    governor.decide([], now + 1.0)
    assert engine.judging_since is None and engine.overload.share == 0.0


@pytest.mark.parametrize(("share", "needed"), [(0.35, 17), (0.2, 31), (0.8, 10)])
def test_a_wave_is_over_once_more_calls_in_a_row_were_accepted_than_by_chance(share: float, needed: int) -> None:
    """1 in 1,000 times."""
    governor = PoolGovernor(PoolConfig(ceiling=40, limit=20))
    now = waved(governor, served(governor, 60), 60, 3)
    engine = engine_of(governor)
    engine.overload.share = share
    now = waved(governor, now, needed - 1, 10_000)
    governor.decide([], now + 1.0)
    assert engine.overload.limit_before > 0.0
    now = waved(governor, now + 1.0, 1, 10_000)
    governor.decide([], now + engine.timescales.feedback_s)
    assert engine.overload.limit_before == 0.0


@pytest.mark.parametrize(("refused_each", "restored"), [(5, True), (3, False)])
def test_a_wave_that_goes_on_is_borne_in_full_if_it_refuses_few(refused_each: int, restored: bool) -> None:
    governor = PoolGovernor(PoolConfig(ceiling=40, limit=20))
    now = waved(governor, served(governor, 60), 60, 3)
    engine = engine_of(governor)
    before, limit = engine.overload.limit_before, governor.state.limit
    waved(governor, now, 200, refused_each)
    assert engine.overload.limit_before == before
    assert governor.state.limit >= before if restored else governor.state.limit == limit


def test_a_wave_that_refuses_more_than_at_first_is_judged_again() -> None:
    """Calls may be refused for the load after all: the capacity has fallen below what is still open."""
    governor = PoolGovernor(PoolConfig(ceiling=40, limit=20))
    now = waved(governor, served(governor, 60), 60, 3)
    limit, engine = governor.state.limit, engine_of(governor)
    assert engine.overload.borne_until > now + 2.0
    waved(governor, now, 30, 1)
    assert governor.state.limit < 0.75 * limit


@pytest.mark.parametrize("stood_at", [None, 2.5, -30.0])
def test_levels_accepted_later_are_a_rate_unless_a_cap_stood_there_lately(stood_at: float | None) -> None:
    levels = AcceptedLater()
    if stood_at is not None:
        levels.note_cap(stood_at)
    confirmed = []
    for at in (0.0, 2.0):
        levels.note_refusal(10, at)
        confirmed.append(levels.confirmed(20.0, at + 1.0, rtt_s=1.0, memory_rtts=20.0))
    assert confirmed == [False, stood_at != 2.5]


def test_a_rate_by_the_second_follows_the_budget_that_it_is_of_and_no_other() -> None:
    """A tighter budget of a day, or of another model, has a limit of its own."""
    governor = PoolGovernor(PoolConfig(ceiling=200))
    governor.decide([], 0.0)
    state, now, number = engine_of(governor), 10.0, 0

    def answered(name: str, limit: float, calls: int) -> None:
        nonlocal now, number
        for _ in range(calls):
            number, now = number + 1, now + 0.1
            readings = Readings((Reading(name, BudgetUnit.REQUESTS, limit, 0.9 * limit, 60.0),))
            call = f"c{number}"
            leaves = sent(call, now, 5, 20, held_by=NAME)
            governor.decide([leaves, done(call, now + 0.05, now, readings=readings)], now + 0.05)

    answered("requests", 600.0, 5)
    name = state.told.tightest_requests()
    assert name == "requests:"
    state.rate = LearnedRate.advertised(10.0, 1.0, now, budget=name, limit=600.0)
    answered("day", 60.0, 5)
    assert state.told.tightest_requests() == "day:" and state.rate.counted_per_s == 10.0
    answered("requests", 300.0, 5)
    assert state.rate.counted_per_s == 5.0


def test_budgets_go_on_while_single_calls_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of a budget may hold the call back that single calls wait for: both would wait for ever."""
    governor = PoolGovernor(PoolConfig(ceiling=40))
    now = served(governor, 30)
    engine = engine_of(governor)
    engine.single_calls = SingleCalls(8, slow_start=False, after_cut=True)
    engine.growth.cut(now, 8.0)
    monkeypatch.setattr(ReportedBudgets, "next_at", lambda *_: now + 1.0)
    monkeypatch.setattr(ReportedBudgets, "advance", lambda *_: "the budget was tested")
    governor.decide([], now + 0.1)
    assert governor.next_at() == now + 1.0
    governor.decide([], now + 1.0)
    assert engine.reason == "the budget was tested" and engine.single_calls is not None


def test_a_rate_is_given_up_with_the_budget_that_told_it() -> None:
    """Nobody enforces the budget: what binds is something else, which the rate may keep from being found."""
    governor = PoolGovernor(PoolConfig(ceiling=100, limit=20))
    now = served(governor, 60)
    state, name = engine_of(governor), "requests:"
    budget = state.told.known[name] = Budget("requests", BudgetUnit.REQUESTS, "", limit=1500.0, level=1500.0)
    state.rate = LearnedRate.advertised(25.0, 1.0, now, budget=name, limit=1500.0)
    state.rate.bound_at = now + 1.0
    governor.decide([], now + 0.1)
    assert state.rate is not None
    budget.trust.drop(now)
    governor.decide([], now + 0.2)
    assert state.rate is None
    assert governor.reason == "more calls a second are accepted than advertised"
