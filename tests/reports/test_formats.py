"""Texts, numbers and figures as people read them."""

from __future__ import annotations

import pytest

from dicast.app.domain import text
from dicast.app.reports import formats


@pytest.mark.parametrize(
    "seconds, shown",
    [
        (0, "0.0 s"), (12.04, "12.0 s"), (59.94, "59.9 s"), (59.96, "1 min 00 s"), (60, "1 min 00 s"),
        (61.4, "1 min 01 s"), (200, "3 min 20 s"), (3599.4, "59 min 59 s"), (3599.6, "1 h 00 min"),
        (3600, "1 h 00 min"), (7529, "2 h 05 min"), (360_000, "100 h 00 min"),
    ],
)  # fmt: skip
def test_a_duration(seconds: float, shown: str) -> None:
    assert formats.duration(seconds) == shown


@pytest.mark.parametrize("parts, shown", [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (list("abc"), "a, b and c")])
def test_parts_are_joined(parts: list[str], shown: str) -> None:
    assert text.joined(parts) == shown


def test_numbers() -> None:
    assert (formats.number(None), formats.number(1234.567), formats.number(2, 0)) == ("–", "1,234.57", "2")
    assert (formats.percent(None), formats.percent(0.417), formats.percent(1.0, 1)) == (
        "–",
        "42\u00a0%",
        "100.0\u00a0%",
    )
    assert [text.counted(n, "judge") for n in (0, 1, 1200)] == ["0 judges", "1 judge", "1,200 judges"]
    assert (text.counted(2, "retry", "retries"), text.counted(1, "retry", "retries")) == ("2 retries", "1 retry")
    assert [formats.chance(p) for p in (None, 0.0009, 0.001, 0.25)] == ["–", "< 0.001", "0.001", "0.250"]
