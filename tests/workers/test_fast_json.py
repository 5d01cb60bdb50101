"""Messages read by orjson are what kombu would have read."""

import datetime
import decimal
import math
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.serialization import registry
from kombu.utils import json as kombu_json

from dicast.workers.broker import fast_json

KEYS = st.text(max_size=5) | st.just("__value__")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=8)
    | st.datetimes() | st.uuids() | st.decimals(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(VALUES)
def test_what_kombu_wrote_is_read_as_by_kombu(value):
    text = kombu_json.dumps(value)
    read = [fast_json.loads(form) for form in (text, text.encode(), memoryview(text.encode()))]
    assert read == [kombu_json.loads(text)] * 3
    assert [repr(one) for one in read] == [repr(kombu_json.loads(text))] * 3


@pytest.mark.parametrize("value", [
    uuid.uuid4(), decimal.Decimal("1.10"), datetime.datetime(2026, 1, 2, 3), "\ud800", math.inf,
])  # fmt: skip
def test_what_only_kombu_reads(value):
    assert fast_json.loads(kombu_json.dumps({"a": [value]})) == {"a": [value]}


@pytest.mark.parametrize("text", ["", "{", b"\xff", '{"a": 1} x'])
def test_what_nobody_reads_raises_what_kombu_raises(text):
    with pytest.raises(ValueError) as theirs:
        kombu_json.loads(text)
    with pytest.raises(type(theirs.value)):
        fast_json.loads(text)


def test_integers_beyond_64_bits_become_floats():
    assert fast_json.loads(kombu_json.dumps([10**40])) == [1e40]


def test_kombu_reads_with_it():
    before = registry._decoders["application/json"]
    try:
        fast_json.use_for_messages()
        assert registry._decoders["application/json"] is fast_json.loads
        assert registry.loads(b'{"a": 1}', "application/json", "utf-8") == {"a": 1}
        assert registry.dumps({"a": 1}, "json")[0] == "application/json"
    finally:
        registry._decoders["application/json"] = before
