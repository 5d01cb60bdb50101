"""Probes for biases that need no further calls: what is planted is found, and nothing else is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dicast.app.analysis.assess import assess
from dicast.app.analysis.scores import DimensionScores, JobScores, People
from dicast.app.domain.item import Item
from dicast.app.domain.judge_statistics import DimensionStatistics
from dicast.app.domain.probes import SeenProbe, measured
from tests.assessment.test_assess import checked, dimension

ITEMS = 400


def probed(
    seed: int, *, length: float = 0.0, marks: float = 0.0, rated: int = 200, **probes: Any
) -> DimensionStatistics:
    """A fair judge, and one who gives so much more for a doubled length and for marks. Long texts are better, too."""
    rng = np.random.default_rng(seed)
    chars = np.round(np.exp2(rng.uniform(6, 11, ITEMS)))
    marked = (rng.random(ITEMS) < 0.4).astype(float)
    quality = 50 + 4 * np.log2(chars) + rng.normal(0, 8, ITEMS)
    bent = quality + length * (np.log2(chars) - 8.5) + marks * marked

    def seen(what: Any) -> Any:
        return np.clip(np.round(what + rng.normal(0, 6, ITEMS)), 0, 200)

    scores = np.stack([seen(quality), seen(bent)], axis=1)[:, :, None]
    people = np.stack([seen(quality), seen(quality)], axis=1)[:rated]
    of = DimensionScores(dimension(0, 200), scores, People(np.arange(rated), ("ada", "ben"), people))
    given = {"verbosity": chars, "formatting": marked, **probes}
    return checked(assess(JobScores(ITEMS, ("fair", "bent"), (of,), probes=given)))


def test_what_is_planted_is_found_and_nothing_else() -> None:
    held, false = [], 0
    for seed in range(10):
        of = probed(seed, length=3.0, marks=5.0)
        found = {(probe.voice, probe.probe): probe for probe in of.probes}
        assert len(found) == 6, "two judges and the panel, twice"
        for voice, share in (("fair", 0.0), ("bent", 1.0), ("panel", 0.5)):
            for kind, planted in (("verbosity", 3.0), ("formatting", 5.0)):
                effect = found[voice, kind].effect
                held.append(effect.low <= share * planted <= effect.high)
        assert found["bent", "verbosity"].p < 0.01 and found["bent", "formatting"].p < 0.05
        false += sum(found["fair", kind].p < 0.05 for kind in ("verbosity", "formatting"))
    assert sum(held) >= 0.9 * len(held)
    assert false <= 2
    assert any("bent gives" in line and "may be the cause" in line for line in of.summary)


def test_without_a_bias_the_report_says_so() -> None:
    assert "No judge is seen to favour length or marks more than these raters do." in probed(3).summary


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rated": 10}, "it needs 20 items that people rated or more, and there are 10"),
        ({"formatting": np.zeros(ITEMS)}, "fewer than 5 of the rated items are marked up, or are not"),
        ({"verbosity": np.full(ITEMS, 80.0)}, "all rated items are equally long"),
        ({"verbosity": np.full(ITEMS, np.nan)}, "and there are 0"),
    ],
)
def test_what_cannot_be_said(changes: Any, reason: str) -> None:
    of = probed(1, **changes)
    assert any(reason in (probe.effect.reason or "") and probe.p is None for probe in of.probes)


def test_five_marked_items_that_people_rated_are_enough() -> None:
    def formatting(marked: int) -> list[str]:
        marks = np.zeros(ITEMS)
        marks[:marked] = 1.0
        return [
            probe.effect.reason or "" for probe in probed(1, formatting=marks).probes if probe.probe == "formatting"
        ]

    assert formatting(5) == ["", "", ""]
    assert all("fewer than 5 of the rated items" in reason for reason in formatting(4))


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("Plain words, 3 * 4 = 12.", 0), ("In 1999. Then -5.", 0), ("a-b and #tag", 0),
        ("# Title", 1), ("So:\n- one\n- two", 1), ("1. one", 1), ("It is **bold**.", 1), ("```python\nx\n```", 1),
        ("| a | b |", 1),
    ],
)  # fmt: skip
def test_what_is_measured(text: str, marked: int) -> None:
    item = Item(id="i", text=text)
    length, marks = SeenProbe(probe="verbosity"), SeenProbe(probe="formatting")
    assert measured(item, [marks, length]) == {"text.chars": len(text), "text.marked": marked}
    assert measured(item, [length]) == {"text.chars": len(text)}
    assert measured(item, []) == {}
