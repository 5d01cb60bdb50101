from __future__ import annotations

import pytest

from dicast.app.domain.opinion import CallUsage, FailureKind, Usage, error_kind
from dicast.app.providers import exchange
from dicast.app.providers.exchange import MalformedBody


@pytest.mark.parametrize(
    "content",
    [b'{"a": 1, "a": 2}', b'{"b": [{"a": 1, "c": 2, "a": 1}]}', b"{", b"[" * 100_000, b"1" * 5000],
)
def test_duplicate_keys_are_refused_at_any_depth(content):
    with pytest.raises(MalformedBody):
        exchange.refuse_duplicate_keys(content)


def test_the_same_key_in_different_objects_is_fine():
    exchange.refuse_duplicate_keys(b'{"a": {"a": 1}, "b": [{"a": 1}, {"a": 1}]}')


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, None, {"type": "text", "text": "b"}]
    assert exchange.text(parts, "it") == "ab"


@pytest.mark.parametrize("value", [None, 7, "", [], [{"type": "text", "text": 7}], {}])
def test_what_is_no_text_is_malformed(value):
    with pytest.raises(MalformedBody):
        exchange.text(value, "the content")


KEYS = exchange.UsageKeys(
    input=("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"),
    output="output_tokens",
    cached=("cache_read_input_tokens",),
    written=("cache_creation_input_tokens",),
    reasoning=("output_details", "reasoning"),
)


def test_usage_adds_up_cached_tokens_and_tells_them_apart():
    report = {"input_tokens": 1, "cache_read_input_tokens": 53, "cache_creation_input_tokens": None, "output_tokens": 9}
    usage = exchange.usage(report, KEYS)
    assert (usage.input_tokens, usage.output_tokens) == (54, 9)
    assert isinstance(usage, CallUsage)
    assert (usage.cached_input_tokens, usage.cache_write_tokens, usage.reasoning_tokens) == (53, 0, 0)


def test_hidden_reasoning_is_a_part_of_the_output():
    report = {
        "input_tokens": 5,
        "cache_creation_input_tokens": 3,
        "output_tokens": 9,
        "output_details": {"reasoning": 7},
    }
    usage = exchange.usage(report, KEYS)
    assert isinstance(usage, CallUsage)
    assert (usage.input_tokens, usage.cache_write_tokens, usage.reasoning_tokens) == (8, 3, 7)


@pytest.mark.parametrize("details", [None, 7, [], {"reasoning": -1}, {"reasoning": True}, {"reasoning": "7"}])
def test_a_part_that_is_no_number_is_none(details):
    report = {"input_tokens": 5, "output_tokens": 9, "output_details": details}
    assert exchange.usage(report, KEYS) == Usage(input_tokens=5, output_tokens=9)


def test_a_part_is_never_more_than_its_whole():
    report = {"input_tokens": 5, "output_tokens": 9, "output_details": {"reasoning": 70}}
    usage = exchange.usage(report, KEYS)
    assert isinstance(usage, CallUsage) and usage.reasoning_tokens == 9


@pytest.mark.parametrize(
    "ended, answer, usage, cut, kind",
    [
        ("length", None, CallUsage(output_tokens=90, reasoning_tokens=90), True, FailureKind.OUT_OF_TOKENS),
        ("length", "", Usage(output_tokens=90), True, FailureKind.OUT_OF_TOKENS),
        ("length", " <think>First,", Usage(), True, FailureKind.OUT_OF_TOKENS),
        ("length", '{"nonce', CallUsage(output_tokens=90, reasoning_tokens=80), True, FailureKind.OUT_OF_TOKENS),
        ("length", '{"nonce', CallUsage(output_tokens=90, reasoning_tokens=10), True, None),
        ("length", "<think>So.</think>{", Usage(), True, None),
        ("stop", "", Usage(), False, None),
        ("content_filter", '{"nonce', Usage(), False, FailureKind.FILTERED),
        ("content_filter: PROHIBITED_CONTENT", None, Usage(), False, FailureKind.FILTERED),
        ("SAFETY", None, Usage(), False, FailureKind.FILTERED),
        (None, None, Usage(), False, None),
    ],
)
def test_the_reason_of_an_end_names_the_kind(ended, answer, usage, cut, kind):
    if kind is None:
        exchange.check_end(ended, answer, usage, cut=cut)
        return
    with pytest.raises(exchange.MalformedBody) as caught:
        exchange.check_end(ended, answer, usage, cut=cut)
    assert (caught.value.kind, caught.value.usage) == (kind, usage)


@pytest.mark.parametrize(
    "status, body, kind",
    [
        (
            400,
            b'{"error": {"code": "content_filter", "innererror": {"code": "ResponsibleAIPolicyViolation"}}}',
            "filtered",
        ),
        (400, b'{"error": {"innererror": {"code": "ResponsibleAIPolicyViolation"}}}', "filtered"),
        (400, b'{"error": {"code": "invalid_prompt", "type": "invalid_request_error"}}', "filtered"),
        (400, b'{"error": {"message": "Output blocked by content filtering policy"}}', "filtered"),
        (400, b'{"error": {"code": "unknown_parameter"}}', "rejected"),
        (500, b'{"error": {"code": "content_filter"}}', "provider"),
    ],
)
def test_a_filter_is_told_from_other_rejections(status, body, kind):
    assert error_kind(exchange._kind(status, exchange._error_of(body))) == kind
