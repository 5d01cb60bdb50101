from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicast.app.domain.text import clean, excerpt

ANY_TEXT = st.text(st.characters(codec=None))


@pytest.mark.parametrize(
    "text, want",
    [
        ("plain – ünïcödé 😀", "plain – ünïcödé 😀"),
        ("a\tb\nc", "a\tb\nc"),
        ("a\r\nb\rc", "a\nb\nc"),
        ("a\x00b\x1b[31mc\x7fd\x85e\x0bf", "ab[31mcdef"),
        ("a\ud800b\udfff", "a\ufffdb\ufffd"),
    ],
)
def test_clean(text: str, want: str) -> None:
    assert clean(text) == want


@given(ANY_TEXT)
def test_clean_text_encodes_and_stays_as_it_is(text: str) -> None:
    kept = clean(text)
    assert kept.encode().decode() == kept == clean(kept)


@given(ANY_TEXT, st.integers(1, 100))
def test_shown_text_is_one_short_printable_line(text: str, limit: int) -> None:
    line = excerpt(text, limit)
    assert line.isprintable()
    assert len(line) <= limit + len(f"... ({len(text)} characters)")


def test_shown_text_names_what_it_hides() -> None:
    assert excerpt('a\n\x1b[31m\u202e\U000e0001"', 500) == 'a\\u000a\\u001b[31m\\u202e\\U000e0001"'
    assert excerpt("a" * 600, 10) == "aaaaaaaaaa... (600 characters)"
