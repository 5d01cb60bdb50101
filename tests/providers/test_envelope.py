from __future__ import annotations

import pytest

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


def test_usage_adds_up_cached_tokens():
    report = {"input_tokens": 1, "cache_read_input_tokens": 53, "cache_creation_input_tokens": None, "output_tokens": 9}
    keys = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    usage = exchange.usage(report, keys, "output_tokens")
    assert (usage.input_tokens, usage.output_tokens) == (54, 9)
