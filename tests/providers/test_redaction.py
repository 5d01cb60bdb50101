from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicast.app.providers.exchange import MAX_MESSAGE_CHARS, Redactor

KEY = "sk-live-4f9a8b7c6d5e"
redactor = Redactor([KEY, "short", ""])


@pytest.mark.parametrize(
    "message, expected",
    [
        ("Rate limit reached.", "Rate limit reached."),
        (f"Incorrect API key provided: {KEY}.", "Incorrect API key provided: [hidden]."),
        (f"tail {KEY[4:]}", "tail [hidden]"),
        (f"head {KEY[:9]}***", "head [hidden]***"),
        ("another sk-proj-abcdefgh1234", "another [hidden]"),
        ("Authorization: Bearer abc.def", "Authorization: [hidden]"),
        ("a short word", "a short word"),
        ("line\none\ttwo\x1b[31m\x00\u202e", "line\\u000aone\\u0009two\\u001b[31m\\u0000\\u202e"),
        ("lone \ud800", "lone \\ud800"),
    ],
)
def test_clean(message, expected):
    assert redactor.clean(message) == expected


def test_pieces_of_the_judged_text_are_hidden():
    text = "My secret diary, page one. I never liked the mayor."
    said = 'Invalid input near "diary, page one. I never liked": too long'
    assert redactor.clean(said, text) == 'Invalid input near "[hidden]": too long'
    assert redactor.clean("The mayor spoke", text) == "The mayor spoke"


@given(st.text(), st.text(min_size=12))
def test_no_twelve_characters_of_the_judged_text_survive(message, text):
    shown = redactor.clean(message + text, text)
    assert len(shown) <= MAX_MESSAGE_CHARS
    assert shown.isprintable()
    assert not any(text[i : i + 12] in shown for i in range(len(text) - 11)) or "[hidden]" in text


@given(st.text(max_size=20), st.integers(0, 14), st.text(max_size=20))
def test_no_six_characters_of_the_key_survive(before, start, after):
    shown = redactor.clean(before + " " + KEY[start : start + 6] + " " + after)
    assert KEY[start : start + 6] not in shown
