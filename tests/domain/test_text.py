from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicast.app.domain.figure import Figure, figure_text, interval_text, share_text
from dicast.app.domain.text import clean, counted, excerpt, first_few, joined, percent

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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (counted(1, "judge"), "1 judge"),
        (counted(0, "judge"), "0 judges"),
        (counted(1200, "retry", "retries"), "1,200 retries"),
        (percent(0.424), "42 %"),
        (percent(0.0125, 2), "1.25 %"),
        (joined([]), ""),
        (joined(["a"]), "a"),
        (joined(["a", "b"]), "a and b"),
        (joined(["a", "b", "c"]), "a, b and c"),
        (first_few("ab", 2), "a, b"),
        (first_few("abcde", 2), "a, b and 3 more"),
        (figure_text(Figure(value=3.84, low=3.75, high=3.93)), "3.84 (3.75 to 3.93)"),
        (figure_text(Figure.unknown("there are no scores")), "cannot be said, because there are no scores"),
        (figure_text(Figure(value=3.84)), "cannot be said, because no reason is known"),
        (interval_text(Figure(value=0.5, low=-0.25, high=1.25), 1, to=".."), "0.5 (-0.2..1.2)"),
        (interval_text(Figure(value=0.5, low=-0.25, high=1.25), signed=True), "+0.50 (-0.25 to +1.25)"),
        (interval_text(Figure.unknown("x")), None),
        (share_text(Figure(value=0.24, low=0.15, high=0.38)), "24 % (15 to 38)"),
        (share_text(Figure.unknown("x")), None),
    ],
)
def test_counts_shares_and_figures_for_people(text: str | None, expected: str | None) -> None:
    assert text == expected
