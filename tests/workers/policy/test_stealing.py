"""Who gives what waits to whom."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicast.workers.policy.wanted import Load, Transfer, transfers

POOLS = ("a", "b", "c")


def load(node, held=0, available=10, pools=("a",), **more):
    return Load(node, held if isinstance(held, dict) else {"a": held}, available, pools, **more)


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ([load("busy", 9), load("idle")], [Transfer("busy", "idle", "a", 3)]),
        ([load("busy", 7), load("idle")], [Transfer("busy", "idle", "a", 2)]),
        ([load("busy", 5), load("idle")], []),
        ([load("busy", 9), load("not idle", 2)], []),
        ([load("busy", 9), load("full", available=0)], []),
        ([load("busy", 9), load("of another pool", pools=("b",))], []),
        ([load("busy", 9), load("x"), load("y", 1)], [Transfer("busy", "x", "a", 2), Transfer("busy", "y", "a", 1)]),
        ([load("cordoned", 9, takes=False), load("idle")], [Transfer("cordoned", "idle", "a", 9)]),
        ([load("cordoned", 9, takes=False), load("idle", available=4)], [Transfer("cordoned", "idle", "a", 4)]),
        ([load("cordoned", 9, takes=False)], []),
        ([load("said to be busy", 3, depth=50), load("idle")], [Transfer("said to be busy", "idle", "a", 3)]),
        ([load("said to be idle", 9, depth=0), load("idle")], []),
        ([load("full", 1, available=0, full=True), load("idle")], [Transfer("full", "idle", "a", 1)]),
        ([load("full", 4, available=0, full=True), load("idle")], [Transfer("full", "idle", "a", 3)]),
        ([load("full", 1, available=0, full=True), load("also full", available=0, full=True)], []),
        ([load("busy", {"a": 1, "b": 8}), load("idle", pools=("a", "b"))], [Transfer("busy", "idle", "b", 3)]),
        ([], []),
    ],
)
def test_what_is_moved(loads, expected):
    assert transfers(loads) == expected


loads = st.lists(
    st.builds(
        Load, st.sampled_from("uvwxyz"), st.dictionaries(st.sampled_from(POOLS), st.integers(0, 40)),
        st.integers(0, 20), st.sets(st.sampled_from(POOLS)), st.booleans(), st.integers(-1, 60), st.booleans(),
    ),
    unique_by=lambda load: load.node,
)  # fmt: skip


@given(loads, st.integers(1, 20), st.integers(1, 5), st.integers(1, 10))
def test_whatever_they_hold(loads, overload, idle, most):
    idle = min(idle, overload)
    found = transfers(loads, overload=overload, idle=idle, most=most)
    assert found == transfers(list(reversed(loads)), overload=overload, idle=idle, most=most)
    by_node = {load.node: load for load in loads}
    given_, got = Counter(), Counter()
    for donor, receiver, pool, units in found:
        assert units > 0
        assert pool in by_node[receiver].pools
        given_[donor, pool] += units
        got[receiver] += units
    assert not {donor for donor, _ in given_} & set(got)
    assert all(units <= by_node[donor].held_by_pool[pool] for (donor, pool), units in given_.items())
    assert all(units <= by_node[node].available and by_node[node].takes for node, units in got.items())
    for load in loads:
        gave = sum(units for (donor, _), units in given_.items() if donor == load.node)
        assert not load.takes or gave <= most
