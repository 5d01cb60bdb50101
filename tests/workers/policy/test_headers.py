"""Both dialects, and everything a provider may get wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.policy.headers import Reading, Unit, read_limits, read_retry_after

OPENAI = {
    "x-ratelimit-limit-requests": "30000",
    "x-ratelimit-remaining-requests": "28713",
    "x-ratelimit-reset-requests": "2.572s",
    "x-ratelimit-limit-tokens": "150000",
    "x-ratelimit-remaining-tokens": "149984",
    "x-ratelimit-reset-tokens": "6m0s",
}
ANTHROPIC = {
    "anthropic-ratelimit-input-tokens-limit": "50000",
    "anthropic-ratelimit-input-tokens-remaining": "49000",
    "anthropic-ratelimit-input-tokens-reset": "2026-01-02T03:04:15Z",
}
WALL = 1767323045.0  # 2026-01-02T03:04:05Z


def test_openai_tells_durations() -> None:
    assert read_limits(OPENAI, WALL) == (
        Reading(Unit.REQUESTS, 30000.0, 28713.0, 2.572),
        Reading(Unit.TOKENS, 150000.0, 149984.0, 360.0),
    )


def test_anthropic_tells_instants() -> None:
    assert read_limits(ANTHROPIC, WALL) == (Reading(Unit.INPUT_TOKENS, 50000.0, 49000.0, 10.0),)


def test_the_providers_own_date_comes_before_our_clock() -> None:
    dated = {**ANTHROPIC, "date": "Fri, 02 Jan 2026 03:04:10 GMT"}
    assert read_limits(dated, WALL - 7200.0)[0].full_in_s == 5.0


@pytest.mark.parametrize(
    ("reset", "seconds"),
    [("120ms", 0.12), ("1.5s", 1.5), ("6m0s", 360.0), ("1h2m3s", 3723.0), ("7", 7.0), ("soon", 0.0), ("-5s", 0.0)],
)
def test_durations(reset: str, seconds: float) -> None:
    assert read_limits({**OPENAI, "x-ratelimit-reset-requests": reset}, WALL)[0].full_in_s == pytest.approx(seconds)


@pytest.mark.parametrize("wrong", ["", "many", "nan", "inf", "-1", "0"])
def test_a_limit_that_cannot_be_read_is_absent(wrong: str) -> None:
    assert [r.unit for r in read_limits({**OPENAI, "x-ratelimit-limit-requests": wrong}, WALL)] == [Unit.TOKENS]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("3", 3.0), ("0", 0.0), ("1e9", 60.0), ("1e400", None), ("nan", None), ("-1", None), ("tomorrow", None)],
)
def test_retry_after_is_clamped(value: str, seconds: float | None) -> None:
    assert read_retry_after({"retry-after": value}, 60.0) == seconds


@given(st.dictionaries(st.sampled_from([*OPENAI, *ANTHROPIC, "date"]), st.text(max_size=30)))
def test_nothing_a_provider_sends_raises(headers: dict[str, str]) -> None:
    for reading in read_limits(headers, WALL):
        assert reading.limit_per_min > 0
        assert reading.remaining >= 0
        assert reading.full_in_s >= 0
