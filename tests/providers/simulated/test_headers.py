from __future__ import annotations

import re
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.provider import budgets, wire
from lab.provider.account import Behaviour, Limits


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "0s"),
        (-1, "0s"),
        (0.12, "120ms"),
        (0.0001, "1ms"),
        (0.9996, "1s"),
        (1.5, "1.5s"),
        (2.572, "2.572s"),
        (59.9999, "1m0s"),
        (60, "1m0s"),
        (360, "6m0s"),
        (90.25, "1m30.25s"),
        (3723, "1h2m3s"),
    ],
)
def test_durations_look_like_openais(seconds, text):
    assert budgets.duration(seconds) == text


@given(st.floats(0, 1e6))
def test_durations_read_back(seconds):
    match = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:([\d.]+)s)?|(\d+)ms", budgets.duration(seconds))
    assert match
    hours, minutes, rest, ms = (float(part or 0) for part in match.groups())
    assert seconds <= hours * 3600 + minutes * 60 + rest + ms / 1000 + 1e-6 <= seconds + 0.002


@given(st.floats(0, 4e9))
def test_instants_read_back(unix_s):
    text = budgets.instant(unix_s)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", text)
    assert 0 <= datetime.fromisoformat(text).timestamp() - unix_s <= 1


def test_openai_tells_when_buckets_are_full():
    limits = Limits(Behaviour(rpm=30_000, tpm=60_000), 0.0)
    assert limits.requests
    limits.requests.take(1287, 0.0)  # the providers' guide has these very figures
    assert limits.admit(1000, 0.0) is None
    assert wire.openai(limits, 0.0) == {
        "x-ratelimit-limit-requests": "30000",
        "x-ratelimit-remaining-requests": "28712",
        "x-ratelimit-reset-requests": "2.576s",
        "x-ratelimit-limit-tokens": "60000",
        "x-ratelimit-remaining-tokens": "59000",
        "x-ratelimit-reset-tokens": "1s",
    }


def test_anthropic_rounds_tokens_and_repeats_the_tighter_axis():
    limits = Limits(Behaviour(rpm=60, tpm=60_000, output_tpm=12_000), 0.0)
    assert limits.admit(2_400, 0.0) is None
    assert limits.output
    limits.output.take(6_000, 0.0)
    told = wire.anthropic(limits, 0.0, 1_769_515_200.0)
    assert told["anthropic-ratelimit-requests-limit"] == "60"
    assert told["anthropic-ratelimit-requests-remaining"] == "59"
    assert told["anthropic-ratelimit-requests-reset"] == "2026-01-27T12:00:01Z"
    assert told["anthropic-ratelimit-input-tokens-remaining"] == "58000"
    assert told["anthropic-ratelimit-output-tokens-remaining"] == "6000"
    assert told["anthropic-ratelimit-tokens-remaining"] == "6000"
    assert told["anthropic-ratelimit-tokens-limit"] == "12000"
    assert told["anthropic-ratelimit-tokens-reset"] == "2026-01-27T12:00:30Z"


def test_limits_that_are_not_set_are_not_told():
    limits = Limits(Behaviour(), 0.0)
    assert wire.openai(limits, 0.0) == {}
    assert wire.anthropic(limits, 0.0, 0.0) == {}
