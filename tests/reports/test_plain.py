"""Names in a gate's Markdown have no meaning to it."""

from __future__ import annotations

import pytest

from dicast.app.reports.quality_gate import _escaped


@pytest.mark.parametrize("text, plain", [
    ("*a*|b", r"\*a\*\|b"), ("[x](http://h)", r"\[x\]\(http\://h\)"), ("<b>&", r"\<b\>\&"), ("as it is", "as it is"),
    ("a\\", "a\\\\"),
])  # fmt: skip
def test_marks_are_escaped(text: str, plain: str) -> None:
    assert _escaped(text) == plain
