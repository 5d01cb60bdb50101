from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicast.app.domain.text import cell, printable


@pytest.mark.parametrize(
    "text, shown",
    [
        ("plain", "plain"),
        ("", ""),
        ("Ünïcödé 判官 🙂", "Ünïcödé 判官 🙂"),
        ("two\nlines\r\n", r"two\nlines\r\n"),
        ("\x1b[31mred\x1b[0m \x9b31m", r"\x1b[31mred\x1b[0m \x9b31m"),
        ("abc\u202eevil\u2066", r"abc\u202eevil\u2066"),
        ("a\u2028b\u0085c", r"a\u2028b\x85c"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters()), st.integers(1, 50))
def test_printable_is_one_short_line_without_controls(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert len(shown) <= limit
    assert not {unicodedata.category(c) for c in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert len(shown.splitlines()) <= 1


@pytest.mark.parametrize(
    "text, limit, ellipsis, shown",
    [
        ("abcdef", 6, "…", "abcdef"),
        ("abcdefg", 6, "…", "abcde…"),
        ("abcdefg", 6, "...", "abc..."),
        ("\n\n\n\n", 6, "…", r"\n\n\…"),
    ],
)
def test_what_is_cut_says_so(text: str, limit: int, ellipsis: str, shown: str) -> None:
    assert printable(text, limit, ellipsis) == shown


@pytest.mark.parametrize(
    "text",
    ["=1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "  =1", "＝1", "－1", "\0=1", "\u200b=1", "\ufeff@x", "\tx"],
)
def test_formulas_are_disarmed(text: str) -> None:
    assert cell(text) == "'" + text


@pytest.mark.parametrize("text", ["", "good", "1+1=2", "'quoted", "a\n=1", "7"])
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert cell(text) == text
