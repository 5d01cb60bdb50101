from __future__ import annotations

import json

import orjson
import pytest

from dicast.app.domain.opinion import CallUsage, FailureKind, Usage, error_kind
from dicast.app.providers import exchange
from dicast.app.providers.exchange import MalformedBody
from dicast.config.pools import PoolSpec
from tests.providers.conftest import chat


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
    ("report", "output"),
    [
        ({"in": 20, "out": 198, "total": 623}, 603),
        ({"in": 10, "out": 2, "total": 329, "output_details": {"reasoning": 317}}, 319),
        ({"in": 20, "out": 198, "total": 218}, 198),
        ({"in": 20, "out": 198, "total": 10}, 198),
        ({"in": 20, "out": 198, "total": "623"}, 198),
        ({"out": 198, "total": 623, "more": 1}, 198),
    ],
)
def test_what_a_total_has_beyond_input_and_output_is_output(report, output):
    keys = exchange.UsageKeys(("in",), "out", (), (), ("output_details", "reasoning"), "total")
    assert exchange.usage(report, keys).output_tokens == output


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('<think>Let me {see}.</think>\n\n{"a": 1}', '{"a": 1}'),
        ('\n<reasoning>So.</reasoning>{"a": 1}', '{"a": 1}'),
        ('{"a": "<think>x</think>"}', '{"a": "<think>x</think>"}'),
        ("<think>It does not end", "<think>It does not end"),
        ("<b>bold</b>", "<b>bold</b>"),
        ([{"type": "thinking", "thinking": []}, {"type": "text", "text": "<think>.</think>so"}], "so"),
    ],
)
def test_reasoning_before_an_answer_is_cut_off(content, words):
    assert exchange.text(content, "it") == words


def test_an_answer_of_reasoning_alone_is_none():
    with pytest.raises(MalformedBody, match="is empty"):
        exchange.text("<think>.</think> ", "it")


@pytest.mark.parametrize(
    "ended, answer, usage, cut, kind",
    [
        ("length", None, CallUsage(output_tokens=90, reasoning_tokens=90), True, FailureKind.OUT_OF_TOKENS),
        ("length", "", Usage(output_tokens=90), True, FailureKind.OUT_OF_TOKENS),
        ("length", " <think>First,", Usage(), True, FailureKind.OUT_OF_TOKENS),
        ("length", '{"nonce', CallUsage(output_tokens=90, reasoning_tokens=80), True, FailureKind.OUT_OF_TOKENS),
        ("length", '{"nonce', CallUsage(output_tokens=90, reasoning_tokens=10), True, None),
        ("length", "<think>So.</think>{", Usage(), True, None),
        ("length", "<reasoning>First,", Usage(), True, FailureKind.OUT_OF_TOKENS),
        ("length", [{"type": "thinking", "thinking": []}], Usage(), True, FailureKind.OUT_OF_TOKENS),
        ("length", [{"type": "text", "text": "{"}], Usage(), True, None),
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
        (403, b'{"code": "permission-denied", "error": "Content violates usage guidelines. "}', "filtered"),
        (403, b'{"code": "permission-denied", "error": "Access to the chat endpoint is denied"}', "rejected"),
        (403, b'{"error": {"code": 403, "message": "no", "metadata": {"reasons": ["hate"]}}}', "filtered"),
        (403, b'{"error": {"code": 403, "message": "no", "metadata": {"reasons": []}}}', "rejected"),
        (400, b'{"error": {"code": 400, "metadata": {"raw": {"error": {"code": "content_filter"}}}}}', "filtered"),
        (400, b'{"error": {"code": 400, "metadata": {"raw": {"error": {"type": "rate_limit_error"}}}}}', "rejected"),
        (400, b'{"error": {"code": "unknown_parameter"}}', "rejected"),
        (500, b'{"error": {"code": "content_filter"}}', "provider"),
    ],
)
def test_a_filter_is_told_from_other_rejections(status, body, kind):
    assert error_kind(exchange._kind(status, exchange._error_of(body))) == kind


@pytest.mark.parametrize(("levels", "message"), [(50, "level 49: level 48"), (200, "level 199")])
def test_a_gateways_error_is_read_one_level_deep(levels, message):
    """However deep a server nests errors in each other; not at all if it is too deep."""
    error = {"message": "innermost", "code": 400}
    for level in range(levels):
        error = {"message": f"level {level}", "code": 400, "metadata": {"raw": {"error": error}}}
    content = json.dumps({"error": error}).encode()
    assert exchange._error_of(content).message == message
    assert exchange._complaint_of(content).text.startswith(message)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("upstream is busy", "Provider returned error: upstream is busy"),
        ("<html>502</html>", "Provider returned error"),
        ("{not json", "Provider returned error"),
        (7, "Provider returned error"),
        ("", "Provider returned error"),
    ],
)
def test_what_a_gateway_passes_on_is_told(raw, message):
    body = {"error": {"message": "Provider returned error", "code": 429, "metadata": {"raw": raw}}}
    assert exchange._error_of(orjson.dumps(body)).message == message


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("unknown field `top_k`, expected one of `model`, `temperature`, `seed`", ["top_k"]),
        ("Unknown parameter top_k. Supported parameters: temperature, seed.", ["top_k"]),
        ("The supported fields are temperature and seed; top_k is invalid", ["top_k"]),
        ("Unsupported parameters: temperature, seed", ["temperature", "seed"]),
        ("does not support parameters: ['seed'], for model=m", ["seed"]),
        ("it does not say which is invalid", []),
        ("temperature and seed are fine, the image is too large", []),
    ],
)
def test_a_refusal_is_of_the_parameters_that_it_is_about(words, refused):
    options = exchange.Options(PoolSpec(name="p", provider="openai", model="m", params=["top_k"]))
    request = chat(temperature=0.5, params={"seed": 1, "top_k": 2})
    assert options.refused_params(request, 400, orjson.dumps({"error": {"message": words}})) == refused
    assert options.refused_params(request, 404, orjson.dumps({"error": {"message": words}})) == []


def test_the_parameter_to_which_an_error_points_is_the_one():
    """Its words may name another, on which it depends."""
    options = exchange.Options(PoolSpec(name="p", provider="openai", model="m"))
    request = chat(temperature=0.5, params={"effort": "low"})
    error = {"message": "'temperature' is not supported with reasoning_effort 'low'", "param": "temperature"}
    assert options.refused_params(request, 400, orjson.dumps({"error": error})) == ["temperature"]
    assert options.refused_params(request, 400, orjson.dumps({"error": {**error, "param": None}})) == [
        "temperature",
        "effort",
    ]
