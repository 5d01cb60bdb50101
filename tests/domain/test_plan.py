"""Positions, lanes and windows."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicast.app.domain.plan import Lane, Unit, lanes, replicates_together, window


def test_lanes_are_agents_of_one_pool():
    found = lanes([("a",), ("b",), ("a",)], dimensions=2, replicates=1, batched=[False, False, True])
    assert [(lane.pools[0], lane.agents, lane.stride) for lane in found] == [
        ("a", (0,), 1),
        ("b", (1,), 1),
        ("a", (2,), 2),
    ]


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 5))
def test_positions_run_through_every_unit_once(agents, replicates, dimensions, items):
    lane = Lane(("p",), tuple(range(10, 10 + agents)), dimensions, replicates, batched=False)
    units = [lane.unit(p) for p in range(items * lane.units_per_item)]
    order = product(range(items), range(replicates), range(10, 10 + agents), range(dimensions))
    assert units == [Unit(*u) for u in order]


@given(st.integers(1, 3), st.integers(1, 12), st.integers(1, 4), st.integers(1, 4), st.integers(1, 12), st.booleans())
def test_replicates_that_one_call_answers_stand_beside_each_other(agents, replicates, dimensions, items, most, batched):
    (lane,) = lanes([("p",)] * agents, dimensions, replicates, [batched] * agents, answers=[most] * agents)
    units = [lane.unit(p) for p in range(items * lane.units_per_item)]
    assert sorted(units) == [
        Unit(*u) for u in product(range(items), range(replicates), range(agents), range(dimensions))
    ]
    assert lane.together <= min(most, replicates) and replicates % lane.together == 0
    for first in range(0, len(units), lane.stride):
        group = [units[position] for position in lane.group_of(first)]
        asked = {(unit.item, unit.agent) for unit in group}, {unit.dimension for unit in group}
        assert list(map(len, asked)) == [1, dimensions if batched else 1]
        assert len({unit.replicate for unit in group}) == lane.together


def test_as_many_replicates_go_together_as_divide_them_evenly():
    assert [replicates_together(8, most) for most in (1, 2, 3, 5, 8, 128)] == [1, 2, 2, 4, 8, 8]
    assert [replicates_together(7, most) for most in (5, 7)] == [1, 7]


@given(st.integers(0, 500), st.integers(1, 200), st.integers(1, 30))
def test_a_page_has_the_items_of_its_units(first, count, dimensions):
    lane = Lane(("p",), (0, 1), dimensions, 1, batched=False)
    assert set(lane.items_of(first, count)) == {lane.unit(p).item for p in range(first, first + count)}


@given(
    rate=st.floats(0, 5000),
    limit=st.integers(1, 5000),
    seconds=st.floats(0.5, 60),
    page_max=st.integers(1, 1000),
    stride=st.integers(1, 50),
    jobs=st.integers(1, 40),
)
def test_a_window_keeps_the_pool_busy_and_its_pages_small(rate, limit, seconds, page_max, stride, jobs):
    size = window(rate_per_s=rate, limit=limit, seconds=seconds, page_max=page_max, stride=stride, jobs=jobs)
    assert stride <= size.page <= max(page_max, stride)
    assert size.page % stride == size.units % stride == 0
    assert size.units >= 3 * limit * stride
    assert 0 <= size.low_water < size.units


@pytest.mark.parametrize(
    ("rate", "limit", "units", "page"),
    [
        (0.0, 5, 15, 5),  # nothing known of the pool yet
        (1.0, 5, 15, 5),  # a slow pool: a newcomer waits for few others
        (100.0, 50, 500, 167),
        (1000.0, 50, 5000, 500),
    ],
)
def test_windows_hold_seconds_of_work(rate, limit, units, page):
    size = window(rate_per_s=rate, limit=limit, seconds=5, page_max=500, stride=1)
    assert (size.units, size.page) == (units, page)
