"""People's order of a list, as preferences on its pairs."""

from __future__ import annotations

from typing import Any

import pytest

from dicast.app.domain.ranking import OrderError, places, preferences

PAIRS = {"q/1-2": ("a", "b"), "q/1-3": ("c", "a"), "q/2-3": ("b", "c")}


@pytest.mark.parametrize(
    "order", ["a > b = c", " a>b =c ", ["a", ["b", "c"]], '["a", ["b", "c"]]', '[["a"],["c","b"]]']
)
def test_an_order_is_read_in_each_form(order: Any) -> None:
    assert places(order, set("abc")) == {"a": 0, "b": 1, "c": 1}
    assert dict(preferences(order, PAIRS)) == {"q/1-2": 1, "q/1-3": -1, "q/2-3": 0}


def test_an_order_of_some_says_nothing_of_the_others() -> None:
    assert dict(preferences("c > a", PAIRS)) == {"q/1-3": 1}
    assert dict(preferences([3, 1], {"q/1-2": ("1", "3")})) == {"q/1-2": -1}, "whole numbers are ids, too"


@pytest.mark.parametrize(
    ("order", "wrong"),
    [
        ("a > d", "'d' is no candidate of the list"), ("a > b > a", "the order names 'a' twice"),
        ("a = a", "the order names 'a' twice"), ("a > > b", "'' is no candidate"), ("a", "of two candidates at least"),
        ([], "of two candidates at least"), (3, "must be an order"), ("[", "must be an order"),
        (["a", ["b", ["c"]]], "must be an order"), (["a", True], "must be an order"), ({"a": 1}, "must be an order"),
    ],
)  # fmt: skip
def test_what_is_no_order_of_the_list_is_refused(order: Any, wrong: str) -> None:
    with pytest.raises(OrderError, match=wrong.replace("(", r"\(")):
        places(order, set("abc"))
