"""The enforcer's model: every reason to deny, and what a grant changes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicast.workers.policy.calls import CallOutcome, Cost, Done, Sent
from dicast.workers.policy.headers import BudgetUnit, Reading, Readings
from dicast.workers.policy.parameters import BreakerPhase, Bucket, FairMode, Parameters
from lab.simulation.enforcer import CallRequest, Denied, EnforcementState, Granted, effective_limit, grant, release
from tests.workers.policy.build import parameters

REQUESTS = Bucket("requests", BudgetUnit.REQUESTS, "", capacity=2.0, refill_per_s=0.5)
TOKENS = Bucket("tokens", BudgetUnit.TOKENS, "", capacity=1000.0, refill_per_s=10.0)


def ask(
    params: Parameters, state: EnforcementState, call: str, now: float = 0.0, **changes: object
) -> Granted | Denied:
    return grant(params, state, CallRequest(call, **changes), now)  # type: ignore[arg-type]


def fill(params: Parameters, calls: int, now: float = 0.0) -> EnforcementState:
    state = EnforcementState()
    for index in range(calls):
        assert isinstance(ask(params, state, f"c{index}", now), Granted)
    return state


def test_grants_up_to_the_limit_and_tells_how_many_were_open() -> None:
    params, state = parameters(3), EnforcementState()
    answers = [ask(params, state, f"c{i}") for i in range(4)]
    assert [a.sent.open_before for a in answers if isinstance(a, Granted)] == [0, 1, 2]
    assert answers[3] == Denied("limit")


def test_a_limit_lowered_under_the_open_calls_lets_them_finish_and_admits_none() -> None:
    state = fill(parameters(5), 5)
    assert ask(parameters(2), state, "x") == Denied("limit")
    for call in ("c0", "c1", "c2"):
        release(parameters(2), state, call, CallOutcome(200), 1.0)
    assert ask(parameters(2), state, "x", 1.0) == Denied("limit")
    release(parameters(2), state, "c3", CallOutcome(200), 1.0)
    assert isinstance(ask(parameters(2), state, "x", 1.0), Granted)


def test_the_first_refusal_takes_the_pending_step_back_until_the_next_decision() -> None:
    params = parameters(8, limit_if_refused=5)
    state = fill(params, 6)
    release(params, state, "c0", CallOutcome(429), 1.0)
    assert effective_limit(params, state, 1.0) == 5
    assert ask(params, state, "x", 1.0) == Denied("limit")
    assert isinstance(ask(replace(params, version=2), state, "x", 1.0), Granted)


@pytest.mark.parametrize(
    ("known", "counts_after", "limit"), [(1, -1e9, 5), (2, -1e9, 8), (3, -1e9, 8), (-1, -1e9, 8), (1, 0.0, 8)]
)
def test_a_decision_takes_back_what_was_done_about_refusals_that_it_knows_of(
    known: int, counts_after: float, limit: int
) -> None:
    params = parameters(8, limit_if_refused=5)
    state = fill(params, 6)
    for call in ("c0", "c1"):
        release(params, state, call, CallOutcome(429), 1.0)
    later = replace(params, version=2, known_refusals=known, counts_after=counts_after)
    assert isinstance(ask(later, state, "x", 1.0), Granted)
    assert effective_limit(later, state, 1.0) == limit


@pytest.mark.parametrize(
    ("limit", "before", "granted"), [(20, 19, False), (20, 15, True), (8, 7, True), (20, 20, True)]
)
def test_the_last_calls_of_a_queue_try_no_small_step_out(limit: int, before: int, granted: bool) -> None:
    params = parameters(limit, limit_if_refused=before)
    state = fill(params, limit - 1)
    last = grant(params, state, CallRequest("x", last=True), 1.0)
    assert isinstance(last, Granted) is granted
    if not granted:
        assert last == Denied("limit")
        assert isinstance(ask(params, state, "y", 1.0), Granted)


def test_refusals_from_before_the_last_cut_do_not_count() -> None:
    params = parameters(8, limit_if_refused=5, counts_after=0.0)
    state = fill(params, 6)
    release(params, state, "c0", CallOutcome(429), 1.0)
    assert effective_limit(params, state, 1.0) == 8


def test_several_refusals_stop_all_grants_for_one_feedback_delay() -> None:
    params = parameters(8, stop_after=2, feedback_s=0.5)
    state = fill(params, 2)
    for call in ("c0", "c1"):
        release(params, state, call, CallOutcome(529), 1.0)
    assert ask(params, state, "x", 1.2) == Denied("judging", 300)
    assert isinstance(ask(params, state, "x", 1.5), Granted)


@pytest.mark.parametrize(
    ("changes", "denied"),
    [
        ({"hold_until": 2.0}, Denied("judging", 1000)),
        ({"single_call_s": 3.0}, Denied("single_calls", 2000)),
        ({"pace_s": 1.5}, Denied("pacing", 500)),
        ({"breaker": BreakerPhase.OPEN, "breaker_until": 9.0, "break_number": 1}, Denied("breaker", 8000)),
    ],
)
def test_reasons_tell_how_long_to_wait(changes: dict[str, object], denied: Denied) -> None:
    params = parameters(8, **changes)
    state = fill(replace(params, hold_until=0.0, breaker=BreakerPhase.CLOSED), 1)
    assert ask(params, state, "x", 1.0) == denied


def test_a_burst_of_pacing_may_be_saved_up() -> None:
    params = parameters(8, pace_s=1.0, burst_s=2.0)
    state = fill(params, 3)
    assert ask(params, state, "x") == Denied("pacing", 1000)


def test_a_slower_pace_of_before_is_forgotten() -> None:
    state = EnforcementState()
    assert isinstance(grant(parameters(pace_s=30.0), state, CallRequest("a"), 0.0), Granted)
    assert grant(parameters(pace_s=30.0), state, CallRequest("b"), 1.0) == Denied("pacing", 29_000)
    assert grant(parameters(pace_s=2.0), state, CallRequest("b"), 1.0) == Denied("pacing", 1000)
    assert isinstance(grant(parameters(pace_s=2.0), state, CallRequest("b"), 2.0), Granted)


def test_the_gap_is_jittered_once_at_the_grant() -> None:
    params, state = parameters(8, pace_s=2.0, pace_jitter=0.5), EnforcementState()
    ask(params, state, "a", jitter=1.0)
    assert ask(params, state, "b", jitter=-1.0) == Denied("pacing", 3000)


def test_half_open_lets_exactly_one_probe_through_and_another_only_when_it_is_lost() -> None:
    params = parameters(8, breaker=BreakerPhase.HALF_OPEN, break_number=1, probe_s=60.0)
    state = EnforcementState()
    first = ask(params, state, "a", 5.0)
    assert isinstance(first, Granted)
    assert first.sent.probe
    assert [ask(params, state, f"x{i}", 6.0 + i) for i in range(5)] == [Denied("probe")] * 5
    assert isinstance(ask(params, state, "b", 65.0), Granted)
    assert isinstance(ask(replace(params, break_number=2), state, "c", 66.0), Granted)


def test_a_probe_that_came_back_unheard_is_followed_by_another() -> None:
    params = parameters(8, breaker=BreakerPhase.HALF_OPEN, break_number=1, probe_s=60.0)
    state = EnforcementState()
    ask(params, state, "a", 5.0)
    release(params, state, "a", CallOutcome(200), 8.0)
    assert ask(params, state, "b", 12.9) == Denied("probe")
    second = ask(params, state, "c", 13.0)
    assert isinstance(second, Granted)
    assert second.sent.probe
    assert ask(params, state, "d", 30.0) == Denied("probe")


def test_a_silent_governor_leaves_the_stale_limit() -> None:
    params = parameters(8, stale_after_s=60.0, stale_limit=2)
    assert effective_limit(params, EnforcementState(), 60.0) == 8
    assert effective_limit(params, EnforcementState(), 60.1) == 2


def test_an_empty_bucket_tells_when_it_has_enough() -> None:
    params = parameters(8, buckets=(REQUESTS,))
    state = fill(params, 2)
    assert ask(params, state, "x") == Denied("requests", 2000)
    assert ask(params, state, "x", 1.0) == Denied("requests", 1000)
    assert isinstance(ask(params, state, "x", 2.0), Granted)


def test_a_late_snapshot_is_dated_at_its_send() -> None:
    state = fill(parameters(8), 3)
    dated = replace(REQUESTS, capacity=10.0, snapshot=1, level=5.0, spent=1.0, dated_at=0.0)
    answer = ask(parameters(8, buckets=(dated,)), state, "x", 2.0)
    assert isinstance(answer, Granted)
    assert state.fills["requests"].level == pytest.approx(5.0 + 0.5 * 2.0 - 2.0 - 1.0)


def test_tokens_are_settled_to_what_was_used() -> None:
    params = parameters(8, buckets=(TOKENS,))
    state = EnforcementState()
    ask(params, state, "a", input_tokens=600.0)
    release(params, state, "a", CallOutcome(200, Cost(1.0, 100.0, 50.0)), 0.0)
    assert state.fills["tokens"].level == pytest.approx(850.0)


@pytest.mark.parametrize(("status", "left"), [(200, 400.0), (500, 1000.0), (429, 1000.0)])
def test_without_a_count_an_answer_costs_its_estimate_and_a_failure_nothing(status: int, left: float) -> None:
    params = parameters(8, buckets=(TOKENS,))
    state = EnforcementState()
    ask(params, state, "a", input_tokens=600.0)
    release(params, state, "a", CallOutcome(status), 0.0)
    assert state.fills["tokens"].level == pytest.approx(left)


def test_expired_leases_free_their_slot_and_a_late_outcome_is_dropped() -> None:
    params, state = parameters(1), EnforcementState()
    ask(params, state, "a", 0.0, lease_s=10.0)
    assert ask(params, state, "b", 9.9) == Denied("limit")
    assert isinstance(ask(params, state, "b", 10.0), Granted)
    assert release(params, state, "a", CallOutcome(200), 11.0) is None


def test_a_project_that_fell_silent_stands_in_nobodys_way() -> None:
    params, state = parameters(2, demand_ttl_s=5.0), EnforcementState()
    for call, project in (("a", "busy"), ("b", "busy"), ("c", "other")):
        ask(params, state, call, 0.0, project=project)
    release(params, state, "a", CallOutcome(200), 1.0)
    assert ask(params, state, "d", 1.0, project="busy") == Denied("fair_share")
    assert isinstance(ask(params, state, "d", 6.0, project="busy"), Granted)


def test_the_governor_learns_all_that_was_known_when_a_call_left_and_ended() -> None:
    params, state = parameters(8, limit_if_refused=5, counts_after=-1e9), fill(parameters(8), 2)
    first = ask(params, state, "a", 3.0, model="m", input_tokens=70.0, output_tokens=30.0)
    assert first == Granted(Sent("a", 3.0, 2, 8, "", probe=False))
    told = Readings((Reading("x", BudgetUnit.REQUESTS, 60.0, 12.5, 0.0, 3.25),), 1.5)
    done = release(params, state, "a", CallOutcome(429, Cost(1.0, 7.0, 3.0), told, "unit"), 5.0)
    assert done == Done(
        "a", 5.0, 3.0, 2, 429, "m", Cost(1.0, 70.0, 30.0), 100.0, Cost(1.0, 7.0, 3.0), told, "unit", probe=False
    )  # fmt: skip
    second = ask(params, state, "b", 6.0)
    assert isinstance(second, Granted) and second.sent.limit == 5


def test_a_grant_tells_what_held_calls_back_before_it() -> None:
    params, state = parameters(8, pace_s=1.0), EnforcementState()
    ask(params, state, "a")
    ask(params, state, "b", 0.5)
    told = ask(params, state, "b", 1.0)
    assert isinstance(told, Granted) and told.sent.held_by == "pacing"
    again = ask(params, state, "c", 2.0)
    assert isinstance(again, Granted) and again.sent.held_by == ""


@pytest.mark.parametrize("unit, taken", [
    (BudgetUnit.REQUESTS, 1.0), (BudgetUnit.INPUT_TOKENS, 35.0), (BudgetUnit.OUTPUT_TOKENS, 15.0),
    (BudgetUnit.TOKENS, 50.0)
])  # fmt: skip
def test_a_grant_reserves_what_such_calls_really_use(unit: BudgetUnit, taken: float) -> None:
    bucket = Bucket("b", unit, "", capacity=1000.0, refill_per_s=1.0)
    params, state = parameters(8, buckets=(bucket,), token_scale=0.5), EnforcementState()
    ask(params, state, "a", model="m", input_tokens=70.0, output_tokens=30.0)
    assert state.fills["b"].level == 1000.0 - taken
    assert state.spent == {"m": Cost(1.0, 35.0, 15.0), "": Cost(1.0, 35.0, 15.0)}


@pytest.mark.parametrize("status, used, spent", [
    (200, Cost(1.0, 50.0, 20.0), Cost(1.0, 50.0, 20.0)),
    (200, Cost(1.0, 0.0, 0.0), Cost(1.0, 70.0, 30.0)),  # it did not say
    (500, Cost(1.0, 0.0, 0.0), Cost(1.0, 0.0, 0.0)),
])  # fmt: skip
def test_the_counters_are_settled_for_the_model_and_for_all(status: int, used: Cost, spent: Cost) -> None:
    params, state = parameters(8), EnforcementState()
    ask(params, state, "a", model="m", input_tokens=70.0, output_tokens=30.0)
    release(params, state, "a", CallOutcome(status, used), 1.0)
    assert state.spent == {"m": spent, "": spent}


@pytest.mark.parametrize("credit, status, wait_ms", [(2.0, 429, 2000), (2.0, 200, None), (0.0, 429, None)])
def test_a_refusal_takes_saved_up_credit_away(credit: float, status: int, wait_ms: int | None) -> None:
    """What was saved is what was too much; the next call waits for the refill of one."""
    saved = Bucket("b", BudgetUnit.REQUESTS, "", capacity=10.0, refill_per_s=0.5, credit=credit)
    params, state = parameters(8, buckets=(saved,)), EnforcementState()
    ask(params, state, "a")
    release(params, state, "a", CallOutcome(status), 0.0)
    answer = ask(params, state, "b")
    assert (answer.retry_after_ms if isinstance(answer, Denied) else None) == wait_ms


def test_a_bucket_that_others_seemed_to_drain_goes_on_at_the_pace_of_now() -> None:
    drained = Bucket("b", BudgetUnit.REQUESTS, "", 100.0, 1.0, drain_per_s=0.99, paced=True, surplus_gain=1.0,
                     snapshot=1, level=1.0)  # fmt: skip
    params, state = parameters(8, buckets=(drained,), decided_at=100.0), EnforcementState()
    assert isinstance(ask(params, state, "a", 0.0), Granted)
    alone = replace(drained, drain_per_s=0.0, snapshot=2, level=30.0, spent=1.0, dated_at=1.0)
    params = replace(params, buckets=(alone,))
    assert ask(params, state, "b", 1.0) == Denied("b", 1000)
    assert isinstance(ask(params, state, "b", 2.0), Granted)


def test_a_budget_that_is_tested_waits_for_no_pace() -> None:
    slow = Bucket("b", BudgetUnit.REQUESTS, "", 100.0, 0.01, paced=True, surplus_gain=1.0, snapshot=1, level=20.0)
    params, state = parameters(8, buckets=(slow,), decided_at=100.0), EnforcementState()
    assert isinstance(ask(params, state, "a", 0.0), Granted)
    assert isinstance(ask(params, state, "b", 1.0), Denied)
    tested = replace(slow, paced=False, refill_per_s=0.0, snapshot=2, level=2.0, spent=1.0, dated_at=1.0)
    assert isinstance(ask(replace(params, buckets=(tested,)), state, "b", 1.0), Granted)


def test_a_paced_bucket_spreads_its_calls_and_forgives_a_little_lateness() -> None:
    paced = Bucket("b", BudgetUnit.REQUESTS, "", capacity=100.0, refill_per_s=1.0, paced=True, surplus_gain=1.0)
    params, state = parameters(8, buckets=(paced,), decided_at=100.0), EnforcementState()
    assert isinstance(ask(params, state, "a", 100.0), Granted)
    assert ask(params, state, "b", 100.5) == Denied("b", 450), "a twentieth of a second is forgiven"
    assert isinstance(ask(params, state, "b", 101.03), Granted)
    assert ask(params, state, "c", 101.5) == Denied("b", 480), "it counts from where it stood"


MOVES = st.lists(st.tuples(st.sampled_from(["ask", "give"]), st.sampled_from("abc"), st.floats(0.0, 3.0)), max_size=60)


@given(MOVES, st.integers(1, 5), st.sampled_from(list(FairMode)))
def test_open_calls_never_exceed_the_limit_and_books_balance(
    moves: list[tuple[str, str, float]], limit: int, mode: FairMode
) -> None:
    params, state, now = parameters(limit, fair=mode, buckets=(REQUESTS, TOKENS)), EnforcementState(), 0.0
    for index, (move, project, elapsed) in enumerate(moves):
        now += elapsed
        if move == "ask":
            ask(params, state, f"c{index}", now, project=project, input_tokens=10.0)
        elif state.leases:
            release(params, state, next(iter(state.leases)), CallOutcome(200, Cost(1.0, 5.0)), now)
        assert len(state.leases) <= limit
        assert sum(standing.open for standing in state.projects.values()) == len(state.leases)
        assert all(fill.level <= 1000.0 for fill in state.fills.values())


def test_a_project_at_its_own_maximum_waits_for_itself_and_nobody_for_it() -> None:
    params = parameters(limit=4, project_max={"big": 2})
    state = EnforcementState()
    for n in range(2):
        assert isinstance(ask(params, state, f"b{n}", project="big"), Granted)
    assert ask(params, state, "b2", project="big") == Denied("project_max")
    assert (state.held_by, state.projects["big"].waiting) == ("", False)
    for n in range(2):  # its share would be two, too, and strictly all four are another's now
        assert isinstance(ask(params, state, f"s{n}", project="small"), Granted)
    assert ask(params, state, "s2", project="small") == Denied("limit")
    release(params, state, "b0", CallOutcome(200), 1.0)
    assert isinstance(ask(params, state, "s3", 1.0, project="small"), Granted), "though the big one has less than half"


def test_judges_find_the_model_by_its_former_names():
    program = (
        "from lab.simulation.adapter import Adapter\n"
        "from dicast.workers.policy.admission import CallOutcome, CallRequest, Denied, grant, release\n"
        "from dicast.workers.policy.events import Cost\n"
        "from lab.simulation import enforcer\n"
        "assert grant is enforcer.grant"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[3])
