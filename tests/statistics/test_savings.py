"""What the judges save in ratings, in the small: `python -m lab.statistics.savings` does it in the large."""

from __future__ import annotations

import pytest

from lab.statistics.savings import AT_MOST, savings


def test_intervals_are_as_narrow_as_theory_says() -> None:
    for one in savings(100, 1):
        assert one.ratio <= AT_MOST[one.correlation] and one.held >= 0.88
        assert one.ratio == pytest.approx(one.theory, abs=0.02)
