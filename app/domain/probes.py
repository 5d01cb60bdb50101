"""What a bias probe needs to know of an item: measured when it is judged, and kept beside each opinion.

The probes that need no further calls: does a judge favour long texts, or marked-up ones, more than people do?
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal

from dicast.app.domain.item import Item

Probe = Literal["verbosity", "formatting"]
MEASURES: dict[Probe, str] = {"verbosity": "text.chars", "formatting": "text.marked"}
"""The column of each probe, named as no metadata of an item is."""

_MARKED = re.compile(r"^ {0,3}(?:#{1,6} |[-*+] |\d{1,3}[.)] |```|\|.*\|)|\*\*\S|__\S", re.MULTILINE)


def measures(probes: Collection[Probe]) -> list[str]:
    """The columns that these probes need."""
    return [MEASURES[probe] for probe in MEASURES if probe in probes]


def measured(item: Item, probes: Collection[Probe]) -> dict[str, int]:
    """An item's length in characters, and 1 if its text has marks of Markdown (headings, lists, bold, tables, code)."""
    text = item.output
    found = {"text.chars": len(text), "text.marked": int(_MARKED.search(text) is not None)}
    return {name: found[name] for name in measures(probes)}
