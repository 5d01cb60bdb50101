"""What `dicast compare` and `dicast panel` print, line by line."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from dicast.app.domain.figure import Figure
from dicast.app.reports.terminal import TableStyle
from dicast.app.reports.terminal_statistics import _comparison, _front, interval_or_reason

WHY = Figure.unknown("4 items are few")
UP = Figure(value=0.5, low=0.25, high=0.75, items=1200, method="t")


def printed(shown: Any) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=100)
    for each in shown:
        console.print(each)
    return [line.strip() for line in out.getvalue().splitlines() if line.strip()]


def test_a_figure_or_why_it_cannot_be_said() -> None:
    assert interval_or_reason(UP) == "0.50 (0.25..0.75)"
    assert (interval_or_reason(WHY), interval_or_reason(Figure())) == ("4 items are few", "-")


def test_two_runs_are_compared_with_what_moved_and_both_arguments() -> None:
    def shift(judge: str, of: Figure, p: float | None, first: int = 0, second: int = 0) -> SimpleNamespace:
        return SimpleNamespace(dimension="clear", judge=judge, shift=of, p=p, only_first=first, only_second=second)

    moved = SimpleNamespace(
        item_id="i1",
        dimension="clear",
        judge="a",
        first=2,
        second=4.5,
        first_argument="It is so.",
        second_argument="",
        first_text="Old text.",
        second_text="New text.",
    )
    found: Any = SimpleNamespace(
        first="one", second="two", forced=["another rubric"], skipped_sentence="Some were spared.", moved=[moved],
        summary=["Only b changed."], by="system", panel=[], systems=[],
        shifts=[shift("a", UP, 0.0004, 1, 2), shift("b", UP, 0.0125, 0, 3), shift("c", WHY, None)],
    )  # fmt: skip
    lines = printed(_comparison(found, TableStyle(ascii_only=True)))
    assert lines[:3] == ["From one to two", "compared all the same: another rubric", "Only b changed."]
    (header,) = [line for line in lines if "Dimension" in line]
    assert header.split("  ")[0] == "Dimension" and "p (Holm)" in header and "only in one" in header
    rows = [" ".join(line.split()) for line in lines if line.startswith("clear")]
    assert rows == [
        "clear a 1,200 0.50 (0.25..0.75) < 0.001 1 + 2", "clear b 1,200 0.50 (0.25..0.75) 0.013 0 + 3",
        "clear c - 4 items are few - -",
    ]  # fmt: skip
    shown = [" ".join(line.split()) for line in lines[-5:]]
    assert shown == [
        "Some were spared.", "What moved most", "2 to 4.5 i1, clear, a", "Old text. New text.", "It is so. (nothing)",
    ]  # fmt: skip
    still: Any = SimpleNamespace(**{**vars(found), "moved": [], "skipped_sentence": None})
    assert printed(_comparison(still, TableStyle(ascii_only=True)))[-1] == "No item moved."


@pytest.mark.parametrize("reason, said", [
    ("nobody rated", ["No panel can be recommended, because nobody rated."]), (None, []),
])  # fmt: skip
def test_a_panel_is_recommended_or_why_not_is_told(reason: str | None, said: list[str]) -> None:
    found: Any = SimpleNamespace(
        dimension="clear", items=0, panels=0, audited=12, front=[], person=UP, enough=None, reason=reason
    )
    lines = printed(_front(found, TableStyle(ascii_only=True), "calls"))
    assert lines[0] == "clear"
    assert "All judges were asked on the 12 items of the audit alone, a random sample." in lines
    assert any(line.startswith("A person reaches 0.50 (0.25..0.75) against") for line in lines)
    assert [line for line in lines if "recommended" in line] == said
