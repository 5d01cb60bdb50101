"""Every dialect of rate-limit headers, and everything a provider may get wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicast.workers.policy.headers import (
    LONGEST_S,
    NO_READINGS,
    BudgetUnit,
    Readings,
    is_about_limits,
    read_limits,
    retry_after,
)

WALL = 1767323045.0  # 2026-01-02T03:04:05Z
OPENAI = {
    "x-ratelimit-limit-requests": "500",
    "x-ratelimit-remaining-requests": "499",
    "x-ratelimit-reset-requests": "120ms",
}


def named(prefix: str, **values: str) -> dict[str, str]:
    """`limit`, `remaining` and `reset` in place of the `*` of a pattern."""
    return {prefix.replace("*", role): value for role, value in values.items()}


DIALECTS = [
    ("openai", OPENAI, [(BudgetUnit.REQUESTS, 500, 499, 0, 0.12)]),
    ("openai tokens", named("x-ratelimit-*-tokens", limit="150000", remaining="149984", reset="6m0s"),
     [(BudgetUnit.TOKENS, 150000, 149984, 0, 360.0)]),
    ("azure", {**named("x-ratelimit-*-requests", limit="5", remaining="4", reset="12"),
               "x-ratelimit-renewalperiod-requests": "60"}, [(BudgetUnit.REQUESTS, 5, 4, 60, 12.0)]),
    ("azure tells nothing", named("x-ratelimit-*-requests", limit="-1", remaining="-1", reset="0"), []),
    ("anthropic", named("anthropic-ratelimit-input-tokens-*", limit="50000", remaining="49000",
                        reset="2026-01-02T03:04:15Z"), [(BudgetUnit.INPUT_TOKENS, 50000, 49000, 0, 10.0)]),
    ("anthropic, priority", named("anthropic-priority-output-tokens-*", limit="9000", remaining="8000",
                                  reset="2026-01-02T03:04:06Z"), [(BudgetUnit.OUTPUT_TOKENS, 9000, 8000, 0, 1.0)]),
    ("anthropic, unified", {"anthropic-ratelimit-unified-5h-utilization": "0.4",
                            "anthropic-ratelimit-unified-5h-reset": "1767330000",
                            "anthropic-ratelimit-unified-status": "allowed"}, []),
    ("groq", named("x-ratelimit-*-requests", limit="14400", remaining="14369", reset="3m6s"),
     [(BudgetUnit.REQUESTS, 14400, 14369, 0, 186.0)]),
    ("cerebras", named("x-ratelimit-*-requests-day", limit="1000000", remaining="999", reset="33011.382867"),
     [(BudgetUnit.REQUESTS, 1000000, 999, 86400, 33011.382867)]),
    ("mistral", named("x-ratelimit-*-req-minute", limit="60", remaining="0"), [(BudgetUnit.REQUESTS, 60, 0, 60, None)]),
    ("mistral, no such model", named("x-ratelimit-*-req-minute", limit="0", remaining="0"), []),
    ("together", {**named("x-ratelimit-*", limit="10", remaining="9", reset="1"),
                  **named("x-tokenlimit-*-dynamic", limit="5000", remaining="4000", reset="1")},
     [(BudgetUnit.REQUESTS, 10, 9, 0, 1.0), (BudgetUnit.TOKENS, 5000, 4000, 0, 1.0)]),
    ("fireworks", {**named("x-ratelimit-*-tokens-prompt", limit="9000", remaining="8000"),
                   "x-ratelimit-over-limit": "yes"}, [(BudgetUnit.INPUT_TOKENS, 9000, 8000, 0, None)]),
    ("openrouter", named("X-RateLimit-*", limit="20", remaining="0", reset="1767323055000"),
     [(BudgetUnit.REQUESTS, 20, 0, 0, 10.0)]),
    ("unix seconds", named("x-ratelimit-*", limit="20", remaining="3", reset="1767323050"),
     [(BudgetUnit.REQUESTS, 20, 3, 0, 5.0)]),
    ("digital ocean", named("x-ratelimit-*-requests-per-minute", limit="20", remaining="3", reset="1767323050"),
     [(BudgetUnit.REQUESTS, 20, 3, 60, 5.0)]),
    ("sambanova", named("x-ratelimit-*-requests-day", limit="20", remaining="3"),
     [(BudgetUnit.REQUESTS, 20, 3, 86400, None)]),
    ("cohere", {"x-trial-endpoint-call-remaining": "17"}, [(BudgetUnit.REQUESTS, 0, 17, 0, None)]),
    ("nous", named("x-ratelimit-*-requests-1h", limit="900", remaining="3", reset="1800"),
     [(BudgetUnit.REQUESTS, 900, 3, 3600, 1800.0)]),
    ("litellm by descriptor", named("x-ratelimit-api_key-*-requests", limit="900", remaining="3"),
     [(BudgetUnit.REQUESTS, 900, 3, 0, None)]),
    ("kong", named("X-RateLimit-*-Minute", limit="600", remaining="3"), [(BudgetUnit.REQUESTS, 600, 3, 60, None)]),
    ("kong's ai plugin", named("X-AI-RateLimit-*-hour-azure", limit="600", remaining="3", reset="60"),
     [(BudgetUnit.REQUESTS, 600, 3, 3600, 60.0)]),
    ("envoy", named("x-ratelimit-*", limit='600, 600;w=60;name="llm"', remaining="3", reset="7"),
     [(BudgetUnit.REQUESTS, 600, 3, 60, 7.0)]),
    ("two windows in one field", {**named("x-ratelimit-*", limit="1, 15000", remaining="0, 14000", reset="1, 2419704"),
                                  "x-ratelimit-policy": "1;w=1, 15000;w=2592000"},
     [(BudgetUnit.REQUESTS, 1, 0, 1, 1.0), (BudgetUnit.REQUESTS, 15000, 14000, 2592000, 2419704.0)]),
    ("ietf, drafts to 06", named("RateLimit-*", limit="100", remaining="50", reset="30"),
     [(BudgetUnit.REQUESTS, 100, 50, 0, 30.0)]),
    ("ietf, draft 07", {"RateLimit": "limit=100, remaining=50, reset=5", "RateLimit-Policy": "100;w=60"},
     [(BudgetUnit.REQUESTS, 100, 50, 60, 5.0)]),
    ("ietf, drafts from 08", {"RateLimit": '"burst";r=50;t=30, "spend";r=9000',
                              "RateLimit-Policy": '"burst";q=100;w=60, "spend";q=10000;w=86400;qu="tokens"'},
     [(BudgetUnit.REQUESTS, 100, 50, 60, 30.0), (BudgetUnit.TOKENS, 10000, 9000, 86400, None)]),
    ("ietf, calls in flight", {"RateLimit": '"c";r=5', "RateLimit-Policy": '"c";q=9;qu="concurrent-requests"'}, []),
    ("repeated by a proxy", named("x-ratelimit-*-requests", limit="500, 500", remaining="499, 499", reset="1s, 1s"),
     [(BudgetUnit.REQUESTS, 500, 499, 0, 1.0)]),
]  # fmt: skip


@pytest.mark.parametrize(("headers", "budgets"), [d[1:] for d in DIALECTS], ids=[d[0] for d in DIALECTS])
def test_a_dialect(
    headers: dict[str, str], budgets: list[tuple[BudgetUnit, float, float, float, float | None]]
) -> None:
    found = [(r.unit, r.limit, r.remaining, r.period_s, r.reset_s) for r in read_limits(headers, WALL).budgets]
    assert found == budgets


def test_budgets_of_a_chain_are_kept_apart() -> None:
    both = {**OPENAI, **named("ratelimit-*", limit="1200", remaining="1", reset="30")}
    names = [reading.budget for reading in read_limits(both, WALL).budgets]
    assert len(set(names)) == 2


def test_an_instant_is_in_the_clock_of_the_date_header() -> None:
    ahead = {**named("x-ratelimit-*", limit="9", remaining="1", reset="1767323085000"),
             "date": "Fri, 02 Jan 2026 03:04:35 GMT"}  # fmt: skip
    reading = read_limits(ahead, WALL).budgets[0]
    assert reading.from_answer
    assert reading.reset_s == pytest.approx(10.0, abs=0.6)
    near = {**ahead, "date": "Fri, 02 Jan 2026 03:04:04 GMT"}
    assert read_limits(near, WALL).budgets[0].reset_s == 40.0  # the same clock, told a second late


@pytest.mark.parametrize(
    ("reset", "seconds"),
    [("120ms", 0.12), ("1.5s", 1.5), ("1h2m3s", 3723.0), ("7", 7.0), ("soon", None), ("-5s", None), ("1e400", None),
     ("Fri, 02 Jan 2026 03:04:15 GMT", 10.0), ("2026-01-02T03:04:15.5+00:00", 10.5), ("9" * 300, None)],
)  # fmt: skip
def test_a_reset(reset: str, seconds: float | None) -> None:
    reading = read_limits({**OPENAI, "x-ratelimit-reset-requests": reset}, WALL).budgets[0]
    assert reading.reset_s == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("wrong", ["", "many", "nan", "inf", "-1", "0", "1e400"])
def test_a_limit_that_cannot_be_read_is_absent(wrong: str) -> None:
    assert read_limits({**OPENAI, "x-ratelimit-limit-requests": wrong}, WALL).budgets == ()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("3", 3.0), ("7.66", 7.66), ("0", 0.0), ("1e9", LONGEST_S), ("1e400", LONGEST_S), ("nan", None), ("-1", 0.0),
     ("tomorrow", None), ("Fri, 02 Jan 2026 03:04:15 GMT", 10.0)],
)  # fmt: skip
def test_retry_after_in_seconds_or_as_a_date(value: str, seconds: float | None) -> None:
    found = retry_after({"retry-after": value}.items(), WALL)
    assert (found and found[0]) == seconds


def test_the_finer_form_of_retry_after_comes_first() -> None:
    found = read_limits({"Retry-After": "30", "Retry-After-Ms": "29400"}, WALL)
    assert (found.retry_after_s, found.retry_grain_s) == (29.4, 0.001)


def test_a_header_that_is_not_understood_is_named() -> None:
    assert read_limits({"x-quota-left": "5", "server": "x"}, WALL).unknown == ("x-quota-left",)
    assert is_about_limits("X-Quota-Left")
    assert not is_about_limits("server")


def test_nothing_told_is_nothing() -> None:
    assert read_limits({"server": "x", "date": "Fri, 02 Jan 2026 03:04:15 GMT"}, WALL) is NO_READINGS


def test_readings_come_back_from_json() -> None:
    found = read_limits({**OPENAI, "retry-after": "3", "x-my-ratelimit": "5"}, WALL)
    assert Readings.from_list([[list(b) for b in found.budgets], *found[1:]]) == found


def test_readings_of_an_older_version_are_nothing_told() -> None:
    assert Readings.from_list([["requests", 60.0, 12.5, 3.25]]) == NO_READINGS
    assert Readings.from_list([["requests", 60.0, 12.5, 3.25]] * 4) == NO_READINGS


NAMES = sorted({name for _, headers, _ in DIALECTS for name in headers} | {"date", "retry-after", "retry-after-ms"})


@given(st.dictionaries(st.sampled_from(NAMES), st.text(max_size=40) | st.sampled_from(["1", "1, 2", '"a";r=1', "1e9"])))
def test_nothing_a_provider_sends_raises(headers: dict[str, str]) -> None:
    found = read_limits(headers, WALL)
    for reading in found.budgets:
        assert reading.limit >= 0
        assert reading.remaining >= 0
    assert found.retry_after_s is None or found.retry_after_s >= 0
