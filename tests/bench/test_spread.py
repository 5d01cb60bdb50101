"""Medians and ranges, as printed."""

from __future__ import annotations

import pytest

from lab.bench.spread import Spread, spread


def test_median_and_range() -> None:
    assert spread([3.0, 1.0, 2.0]) == Spread(1.0, 2.0, 3.0)
    assert spread([4.0, 1.0]) == Spread(1.0, 2.5, 4.0)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0.0], "0"),
        ([7.0, 7.0], "7"),
        ([28.0, 30.0, 31.0], "30 (28–31)"),
        ([1.234], "1.23"),
        ([12.34, 11.0, 13.0], "12.3 (11.0–13.0)"),
        ([123.4, 99.6], "112 (100–123)"),
        ([-2.5], "-2.50"),
    ],
)
def test_three_digits_and_no_range_where_there_is_none(values: list[float], shown: str) -> None:
    assert str(spread(values)) == shown
