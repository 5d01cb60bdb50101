from __future__ import annotations

import pytest

from lab.provider.account import Behaviour, ConfigError, Limits
from lab.provider.budgets import DIALECTS, Account, ReportedBudget, parse_budgets


def test_budgets_are_written_in_one_line():
    assert parse_budgets("window:4800/60+bucket:100000/60:tokens:shown") == (
        ReportedBudget("window", 4800, 60.0),
        ReportedBudget("bucket", 100_000, 60.0, "tokens", enforced=False),
    )


@pytest.mark.parametrize("text", ["", "window", "window:0/60", "window:5/0", "heap:5/60", "window:5/60:calls"])
def test_what_is_no_budget_is_refused(text):
    with pytest.raises(ConfigError, match="a budget looks like"):
        Behaviour().changed({"budgets": text})


def test_an_unknown_dialect_is_refused_with_those_that_are():
    with pytest.raises(ConfigError, match=r"told must be one of openai, .*, got 'klingon'"):
        Behaviour().changed({"told": "klingon"})


def test_a_window_gives_everything_back_at_its_end_on_the_clock():
    account = Account(
        ReportedBudget("window", 2, 60.0), 100.0, 1_000_000_005.0
    )  # 105 s on the clock: 25 s of a minute are over
    account.take(2, 100.0)
    assert account.wait_s(1, 101.0) == account.state(101.0).reset_s == pytest.approx(34.0)
    assert account.state(134.9).remaining == 0
    assert account.state(135.0) == (account.budget, 2, pytest.approx(60.0))


def test_a_bucket_refills_all_the_time():
    account = Account(ReportedBudget("bucket", 60, 60.0), 0.0, 0.0)
    account.take(60, 0.0)
    assert account.wait_s(1, 0.25) == pytest.approx(0.75)
    assert account.state(10.0)[1:] == (10, pytest.approx(50.0))


def test_a_log_gives_each_request_back_one_period_after_it():
    account = Account(ReportedBudget("log", 2, 60.0), 0.0, 0.0)
    account.take(1, 0.0)
    account.take(1, 10.0)
    assert account.wait_s(1, 20.0) == account.state(20.0).reset_s == pytest.approx(40.0)
    assert account.state(60.0)[1:] == (1, pytest.approx(10.0))


def test_a_budget_that_is_only_shown_refuses_nobody():
    limits = Limits(Behaviour(budgets="window:1/60:shown", told="openai"), 0.0)
    assert [limits.admit(1, 0.0) for _ in range(3)] == [None] * 3
    assert limits.states(0.0)[0].remaining == 0


def test_a_budget_that_is_spent_refuses():
    limits = Limits(Behaviour(budgets="bucket:1000/60:tokens"), 0.0)
    assert limits.admit(900, 0.0) is None
    refusal = limits.admit(200, 0.0)
    assert refusal is not None and refusal.reason == "tpm" and refusal.wait_s == pytest.approx(6.0)


TOLD = {
    "openai": """x-ratelimit-limit-requests: 600
                 x-ratelimit-remaining-requests: 597
                 x-ratelimit-reset-requests: 40s""",
    "openai-no-reset": """x-ratelimit-limit-requests: 600
                          x-ratelimit-remaining-requests: 597""",
    "azure": """x-ratelimit-limit-requests: 600
                x-ratelimit-remaining-requests: 597
                x-ratelimit-reset-requests: 40
                x-ratelimit-renewalperiod-requests: 60""",
    "azure-ms": """x-ratelimit-limit-requests: 600
                   x-ratelimit-remaining-requests: 597
                   x-ratelimit-reset-requests: 40000""",
    "anthropic": """anthropic-ratelimit-requests-limit: 600
                    anthropic-ratelimit-requests-remaining: 597
                    anthropic-ratelimit-requests-reset: 2001-09-09T01:47:00Z""",
    "mistral": """x-ratelimit-limit-req-minute: 600
                  x-ratelimit-remaining-req-minute: 597""",
    "cerebras": """x-ratelimit-limit-requests-minute: 600
                   x-ratelimit-remaining-requests-minute: 597
                   x-ratelimit-reset-requests-minute: 40.000000""",
    "together": """x-ratelimit-limit: 600
                   x-ratelimit-remaining: 597
                   x-ratelimit-reset: 40.000""",
    "openrouter": "",
    "litellm": """x-ratelimit-api_key-limit-requests: 600
                  x-ratelimit-api_key-remaining-requests: 597""",
    "digitalocean": """x-ratelimit-limit-requests-per-minute: 600
                       x-ratelimit-remaining-requests-per-minute: 597
                       x-ratelimit-reset-requests-per-minute: 1000000020""",
    "envoy": """x-ratelimit-limit: 600, 600;w=60;name="requests"
                x-ratelimit-remaining: 597
                x-ratelimit-reset: 40""",
    "kong": """RateLimit-limit: 600
               RateLimit-remaining: 597
               RateLimit-reset: 40
               X-Ratelimit-Limit-Minute: 600
               X-Ratelimit-Remaining-Minute: 597""",
    "ietf": """RateLimit-Policy: "requests-minute";q=600;w=60
               RateLimit: "requests-minute";r=597;t=40""",
    "ietf3": """RateLimit-limit: 600
                RateLimit-remaining: 597
                RateLimit-reset: 40""",
    "silent": "",
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_dialect_tells_of_a_window_in_its_own_way(dialect):
    unix_s = 999_999_980.0
    limits = Limits(Behaviour(budgets="window:600/60", told=dialect), 0.0, unix_s)
    for _ in range(3):
        limits.admit(1, 0.0)
    told = DIALECTS[dialect](limits.states(0.0), unix_s, False)  # 20 s of this minute of the clock are over
    assert [f"{name}: {value}" for name, value in told.items()] == [line.strip() for line in TOLD[dialect].splitlines()]


def test_openrouter_tells_of_refusals_only_and_in_unix_milliseconds():
    limits = Limits(Behaviour(budgets="window:20/60"), 0.0, 999_999_980.0)
    assert DIALECTS["openrouter"](limits.states(0.0), 999_999_980.0, True) == {
        "X-RateLimit-limit": "20", "X-RateLimit-remaining": "20", "X-RateLimit-reset": "1000000020000",
    }  # fmt: skip
