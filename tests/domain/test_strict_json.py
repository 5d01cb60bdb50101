from __future__ import annotations

import json
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicast.app.domain.verdict import MAX_DEPTH, Flaw, Json, JsonError, loads, outermost_objects

ANY_TEXT = st.text(st.characters(codec=None))
JSON_TEXT = st.text(alphabet='{}[]:,"\\ \n0123456789.eE+-truefalsn\ufeffNaIity\x00ua', max_size=60)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(-1e30, 1e30) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=20,
)


def flaws(value: Json) -> Iterator[Flaw]:
    if isinstance(value, Flaw):
        yield value
    elif isinstance(value, list):
        for inner in value:
            yield from flaws(inner)
    elif isinstance(value, dict):
        for inner in value.values():
            yield from flaws(inner)


def alike(got: Json, expected: Any) -> bool:
    """Equal, except that a whole number is exact here and rounded to a float in the library."""
    if isinstance(got, dict) and isinstance(expected, dict):
        return got.keys() == expected.keys() and all(alike(value, expected[key]) for key, value in got.items())
    if isinstance(got, list) and isinstance(expected, list):
        return len(got) == len(expected) and all(map(alike, got, expected))
    if type(expected) is float:
        return float(got) == expected if isinstance(got, int | float) else False
    return type(got) is type(expected) and got == expected


@given(VALUES, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_what_the_library_writes_is_read(value: Any, escaped: bool, indent: Any) -> None:
    assert alike(loads(json.dumps(value, ensure_ascii=escaped, indent=indent)), value)


@given(JSON_TEXT | ANY_TEXT)
def test_well_formed_means_what_the_library_means(text: str) -> None:
    try:
        expected = json.loads(text.removeprefix("\ufeff"))
    except ValueError:
        with pytest.raises(JsonError):
            loads(text)
        return
    except RecursionError:
        pytest.fail("the alphabet cannot nest that deep in 60 characters")
    got = loads(text)
    if not any(flaws(got)):
        assert alike(got, expected)


@pytest.mark.parametrize(
    "literal, want",
    [
        ("7", 7),
        ("-7", -7),
        ("7.0", 7),
        ("70e-1", 7),
        ("0.7e1", 7),
        ("7e0", 7),
        ("1E+2", 100),
        ("-0", 0),
        ("-0.0e9", 0),
        ("0e999999999999", 0),
        ("1e39", 10**39),
        ("123.4500e2", 12345),
        ("7.5", 7.5),
        ("7.0000000000000000001", 7.0),
        ("1e-5", 1e-5),
        ("5e-324", 5e-324),
        ("1e-999", 0.0),
    ],
)
def test_numbers(literal: str, want: int | float) -> None:
    got = loads(literal)
    assert got == want
    assert type(got) is type(want)


@pytest.mark.parametrize(
    "literal", ["1e40", "1e999", "-1e999999999999999999", "9" * 41, "9" * 5000, "NaN", "-Infinity"]
)
def test_numbers_that_nobody_may_rely_on(literal: str) -> None:
    assert isinstance(loads(literal), Flaw)
    assert loads(f'{{"a": [{literal}], "b": 1}}') == {"a": [loads(literal)], "b": 1}


@given(st.from_regex(r"-?(0|[1-9][0-9]{0,12})(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,2})?", fullmatch=True))
def test_whole_numbers_are_exact(literal: str) -> None:
    got = loads(literal)
    mantissa, _, exponent = literal.lower().partition("e")
    exact = Fraction(mantissa) * Fraction(10) ** int(exponent or 0)
    if isinstance(got, Flaw):
        assert abs(exact) >= 10**12
    else:
        assert (type(got) is int) == (exact.denominator == 1)
        assert got == exact or (type(got) is float and math.isclose(got, float(exact)))


def test_duplicate_keys_spoil_their_object_only() -> None:
    got = loads('[{"a": 1, "a": 1}, {"a": {"b": 1, "\\u0062": 2}}, {"a": 1}]')
    assert got == [Flaw("an object has a key twice"), {"a": Flaw("an object has a key twice")}, {"a": 1}]


@pytest.mark.parametrize("opening, closing", [("[", "]"), ('{"a":', "}")])
def test_depth_is_bounded(opening: str, closing: str) -> None:
    loads(opening * MAX_DEPTH + "1" + closing * MAX_DEPTH)
    for depth in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(JsonError, match="nested deeper"):
            loads(opening * depth + "1" + closing * depth)


def test_messages_never_quote_the_text() -> None:
    with pytest.raises(JsonError) as caught:
        loads('{"secret": tell}')
    assert str(caught.value) == "Expecting value at character 11"


@pytest.mark.parametrize(
    "text, want",
    [
        ("", []),
        ("no object", []),
        ('{"a": 1}', [{"a": 1}]),
        ('{} {"a": {"b": 2}}{"c": 3}', [{}, {"a": {"b": 2}}, {"c": 3}]),
        ('f() { return {"a": 1} }', [{"a": 1}]),
        ('{"a": oops {"b": 1}', [{"b": 1}]),
        ('{"a": {"b": 1}', []),  # unfinished: what is inside it is not outermost
        ('{"a": "{\\"b\\": 1}"}', [{"a": '{"b": 1}'}]),
        ('[{"a": 1}, 2]', [{"a": 1}]),
        ('"{}"', [{}]),  # outside an object a quotation mark means nothing
    ],
)
def test_objects_in_a_chat(text: str, want: list[Json]) -> None:
    assert [found.value for found in outermost_objects(text)] == want


@given(ANY_TEXT | JSON_TEXT)
def test_objects_found_are_where_they_are_said_to_be(text: str) -> None:
    rest = text
    for found in outermost_objects(text):
        assert loads(found.source) == found.value
        _, between, rest = rest.partition(found.source)
        assert between == found.source


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "unit", ["{", "[", '{"a":', '{"', '{"\\"', '\\"', '{"a":[', "{}", "{ ", '{"a":{', '"{', '{"a"}', "\\", '{"a":1,']
)
def test_the_search_takes_linear_time(unit: str) -> None:
    """300,000 characters take less than a second; a quadratic search would take an hour."""
    text = unit * (300_000 // len(unit))
    for _ in outermost_objects(text):
        pass
