"""The one way from a result of the statistics to a figure of a report."""

from __future__ import annotations

import ast
from dataclasses import asdict
from pathlib import Path

import dicast.app
from dicast.app.analysis.estimates import Estimate, Unknown
from dicast.app.analysis.scores import figure
from dicast.app.domain.figure import Figure


def test_a_figure_holds_what_was_estimated() -> None:
    estimate = Estimate(0.5, 0.25, 0.75, 12, "bootstrap by item", 0.9)
    assert figure(estimate).model_dump(exclude={"reason"}) == asdict(estimate)
    assert figure(estimate).is_known


def test_a_figure_says_why_nothing_was() -> None:
    told = figure(Unknown("there are no scores"))
    assert (told.value, told.low, told.high, told.reason) == (None, None, None, "there are no scores")
    assert told == Figure.unknown("there are no scores")


def test_nothing_else_makes_a_known_figure() -> None:
    """Whoever makes one by hand may forget its method or its confidence."""
    made = [
        path.name
        for path in Path(dicast.app.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Figure"
        and any(keyword.arg == "value" for keyword in node.keywords)
    ]
    assert made == ["scores.py"]
