"""Shares of slots and turns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicast.workers.policy.parameters import FairMode
from lab.simulation.enforcer import Standing, in_turn, may_take, most_of, shares

OPEN, SHUT = FairMode.WORK_CONSERVING, FairMode.STRICT


def take(
    project: str, standings: dict[str, Standing], limit: int, mode: FairMode = OPEN, rate_bound: bool = False
) -> bool:
    return may_take(project, standings, {}, limit=limit, mode=mode, rate_bound=rate_bound, quantum=1.0)


@given(
    limit=st.integers(0, 200),
    services=st.lists(st.floats(0, 1e6), min_size=1, max_size=12),
    weights=st.lists(st.floats(0.1, 10), min_size=12, max_size=12),
)
def test_shares_add_up_to_the_limit(limit: int, services: list[float], weights: list[float]) -> None:
    standings = {f"p{i}": Standing(service=service) for i, service in enumerate(services)}
    found = shares(limit, standings, {f"p{i}": weight for i, weight in enumerate(weights)})
    assert sum(found.values()) == limit
    assert all(share >= 0 for share in found.values())


def test_the_remainder_goes_to_those_served_least_so_it_rotates() -> None:
    standings = {name: Standing() for name in "abc"}
    winners = []
    for _ in range(6):
        winner = next(name for name, share in shares(1, standings, {}).items() if share)
        standings[winner].service += 1.0
        winners.append(winner)
    assert winners == ["a", "b", "c", "a", "b", "c"]


def test_weights_divide_the_limit() -> None:
    assert shares(12, {"a": Standing(), "b": Standing()}, {"a": 3.0}) == {"a": 9, "b": 3}


@pytest.mark.parametrize(
    ("b_open", "b_waiting", "mode", "want"),
    [
        (0, True, OPEN, False),
        (0, False, OPEN, True),
        (5, True, OPEN, True),
        (0, False, SHUT, False),
        (0, True, FairMode.OFF, True),
    ],
)
def test_passing_ones_share(b_open: int, b_waiting: bool, mode: FairMode, want: bool) -> None:
    standings = {"a": Standing(open=5), "b": Standing(open=b_open, waiting=b_waiting)}
    assert take("a", standings, 10, mode) is want


def test_where_a_rate_binds_the_one_served_least_goes_first() -> None:
    standings = {"a": Standing(open=1, service=10.0), "b": Standing(open=1, service=0.0, waiting=True)}
    assert not take("a", standings, 100, rate_bound=True)
    assert take("a", standings, 100, rate_bound=False)
    assert take("b", {**standings, "a": Standing(service=10.0, waiting=True)}, 100, rate_bound=True)


def test_every_project_gets_a_slot_within_as_many_turns_as_there_are_projects() -> None:
    standings = {f"p{i}": Standing(waiting=True) for i in range(7)}
    served = []
    for _ in range(7):
        turn = in_turn(standings, standings, {}, limit=2, mode=OPEN)
        assert turn is not None
        served.append(turn)
        standings[turn].service += 5.0
    assert sorted(served) == sorted(standings)


def test_strict_shares_can_be_used_up() -> None:
    assert in_turn("ab", {"a": Standing(open=1), "b": Standing(open=1)}, {}, limit=2, mode=SHUT) is None


@pytest.mark.parametrize(
    "project, limit, project_max, most",
    [
        ("a", 10, {}, None),
        ("a", 10, {"b": 3}, None),
        ("a", 10, {"a": 3, "*": 0.5}, 3),
        ("b", 10, {"a": 3, "*": 0.5}, 5),
        ("b", 11, {"*": 0.25}, 2),
        ("b", 2, {"*": 0.25}, 1),  # never none at all
        ("b", 2, {"*": 40}, 40),  # the limit binds besides
    ],
)
def test_the_maximum_of_a_project(project: str, limit: int, project_max: dict[str, float], most: int | None) -> None:
    assert most_of(project, limit, project_max) == most
