"""The catalogue of faults: what each spoils, how often it is drawn, and what it allows."""

from __future__ import annotations

from collections.abc import Callable
from inspect import getdoc

from lab.chaos.runs import Fault, Run

CATALOGUE: dict[str, Fault] = {}
"""Filled by lab.chaos.faults."""


def fault(**facts: object) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Enter a function into the catalogue under its own name; its docstring tells what happens."""

    def enter(inject: Callable[[Run], None]) -> Callable[[Run], None]:
        what = getdoc(inject)
        assert what, f"{inject.__name__} has no docstring"
        CATALOGUE[inject.__name__] = Fault(inject.__name__, what, inject, **facts)  # type: ignore[arg-type]
        return inject

    return enter


@fault(weight=3)
def nothing(run: Run) -> None:
    """The control: whatever this one finds is the harness's mistake or a plain bug."""
