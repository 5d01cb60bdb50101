"""How many workers are of use: never for calls that a provider would not let be open."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicast.workers.policy.wanted import WaitingCalls, Wanted, WantedBudget, WantedRoom, wanted_workers

MOST = 1000


def one_pool(calls: int, room: WantedRoom, *, width: float = 10, most: int = MOST) -> int:
    return wanted_workers([WaitingCalls(("p",), calls)], {"p": room}, most=most, width=width).workers


@pytest.mark.parametrize(
    "calls, room, workers",
    [
        (0, WantedRoom(50), 0),
        (1, WantedRoom(50), 1),
        (25, WantedRoom(50), 3),
        (10_000, WantedRoom(50), 5),  # the limit binds, however much waits
        (10_000, WantedRoom(1), 1),
        (10_000, WantedRoom(50, broken=True), 1),  # one call at a time tries it
        (0, WantedRoom(50, open=31), 4),  # what is open keeps its workers
        (40, WantedRoom(50, open=31), 4),
        (10_000, WantedRoom(20, open=31), 2),  # over a limit that fell: no worker is of use for these any more
        (10_000, WantedRoom(0), 0),  # an operator lets nothing pass
    ],
)
def test_one_pool(calls: int, room: WantedRoom, workers: int) -> None:
    assert one_pool(calls, room) == workers


def test_a_budget_binds_by_what_begins_within_a_call_s_time() -> None:
    """60 requests a minute at 5 s a call keep five open, and what is left of the budget now comes on top."""
    drained = WantedRoom(500, latency_s=5.0, budgets=[WantedBudget(0.0, 1.0)])
    assert (drained.calls, one_pool(10_000, drained)) == (5, 1)
    assert WantedRoom(500, latency_s=5.0, budgets=[WantedBudget(60.0, 1.0)]).calls == 65
    assert WantedRoom(500, latency_s=5.0, budgets=[WantedBudget(0.0, 1.0), WantedBudget(9.0, 0.1)]).calls == 5
    assert WantedRoom(500, latency_s=0.0, budgets=[WantedBudget(0.0, 1.0)]).calls == 500, "nothing is known of calls"
    assert WantedRoom(500, latency_s=5.0, budgets=[WantedBudget(-90.0, 0.0)]).calls == 1, "overdrawn, it still is tried"


def test_the_bound_over_all_pools_binds() -> None:
    work = [WaitingCalls(("p",), 900), WaitingCalls(("q",), 900)]
    rooms = {"p": WantedRoom(100), "q": WantedRoom(100)}
    found = wanted_workers(work, rooms, most=30, width=10)
    assert found == Wanted(3, {"p": 100, "q": 100}, {"p": 3, "q": 3}, {"p": 900, "q": 900})
    assert wanted_workers(work, rooms, most=1000, width=10).workers == 20


def test_a_pool_that_nobody_has_decided_on_is_bounded_by_that_alone() -> None:
    assert wanted_workers([WaitingCalls(("new",), 900)], {}, most=50, width=10).workers == 5


def test_calls_with_a_choice_go_where_there_is_room() -> None:
    work = [WaitingCalls(("small", "large"), 40), WaitingCalls(("small",), 8)]
    found = wanted_workers(work, {"small": WantedRoom(10), "large": WantedRoom(30)}, most=MOST, width=10)
    assert found.calls == {"small": 10, "large": 30}
    broken = wanted_workers(work, {"small": WantedRoom(10, broken=True), "large": WantedRoom(30)}, most=MOST, width=10)
    assert broken.calls == {"small": 1, "large": 30}, "what is broken gets one call at a time"
    full = wanted_workers(
        [WaitingCalls(("small", "large"), 7)], {"small": WantedRoom(0), "large": WantedRoom(0)}, most=9, width=1
    )
    assert full.workers == 0


def test_unended_jobs_keep_one_worker_and_the_minimum_more() -> None:
    nothing = wanted_workers([], {"p": WantedRoom(50)}, most=MOST, width=10)
    assert (nothing.workers, nothing.by_pool, nothing.waiting) == (0, {"p": 0}, {"p": 0})
    assert wanted_workers([], {}, most=MOST, width=10, unended_jobs=3).workers == 1
    assert wanted_workers([], {}, most=MOST, width=10, minimum=2).workers == 2
    assert wanted_workers([], {"p": WantedRoom(0, open=1)}, most=0, width=10).workers == 1, (
        "an open call has a worker to end"
    )


calls = st.integers(0, 10_000)
rooms = st.dictionaries(
    st.sampled_from("pqr"),
    st.builds(WantedRoom, limit=st.integers(0, 500), open=st.integers(0, 500), broken=st.booleans()),
)
work = st.lists(
    st.builds(WaitingCalls, st.sampled_from([("p",), ("q",), ("p", "q"), ("q", "r", "s")]), calls), max_size=5
)


@given(work, rooms, st.integers(0, 800), st.floats(0.5, 200), st.integers(0, 3), st.integers(0, 3))
def test_no_worker_beyond_what_can_be_open_and_none_too_few(
    work: list[WaitingCalls], rooms: dict[str, WantedRoom], most: int, width: float, minimum: int, unended: int
) -> None:
    found = wanted_workers(work, rooms, most=most, width=width, minimum=minimum, unended_jobs=unended)
    useful = min(most, sum(room.calls for room in rooms.values()) + most * len(set("pqrs") - rooms.keys()))
    assert found.workers <= max(minimum, 1, math.ceil(useful / max(1.0, width)))
    assert found.workers >= minimum
    if not work and not unended and not any(room.open for room in rooms.values()):
        assert found.workers == minimum
    more = [*work, WaitingCalls(("p",), 50)]
    assert (
        wanted_workers(more, rooms, most=most, width=width, minimum=minimum, unended_jobs=unended).workers
        >= found.workers - 1
    )


@given(calls, st.integers(1, 500), st.floats(1, 200))
def test_more_waiting_calls_never_want_fewer_workers(calls: int, limit: int, width: float) -> None:
    assert one_pool(calls + 1, WantedRoom(limit), width=width) >= one_pool(calls, WantedRoom(limit), width=width)
