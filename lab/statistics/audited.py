"""Does a panel's audit tell of its later judges? `python -m lab.statistics.audited --runs 1000`

Three judges rate texts of which two in five are hard: there the first two lie apart, and the third is stricter than
people. An escalating panel asks the third where the first two lie apart and on the items of its audit; people rate
some of all. Each 95 % interval of the third's bias, and of people's mean with the third's help, is asked whether it
holds the truth, from a very large draw: from the items of the audit, and from all items on which the third was asked.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dicast.app.analysis.estimates import Bools, Floats, Ints
from dicast.app.analysis.raters import rater_statistics
from dicast.app.analysis.scores import DimensionScores, People
from dicast.app.domain.figure import Figure
from dicast.app.domain.panel import PanelRule
from dicast.app.domain.report import ReportDimension

ITEMS, RATED, AUDIT = 1000, 400, 0.2
HARD, STRICT = 0.4, 0.8
TRUTH_ITEMS = 1_000_000
THIRD = 2
RULE = PanelRule.model_validate({"escalate": {"difference": 1, "audit": AUDIT}})


class Held(NamedTuple):
    """In which share of the runs the intervals held the truth."""

    source: str
    bias: float
    peoples_mean: float


def drawn(items: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """What the three judges say (items x judges), and people."""
    quality, hard = rng.normal(3, 1, items), rng.random(items) < HARD
    noise = np.column_stack([np.where(hard, 1.0, 0.3)] * 2 + [np.full(items, 0.4)]) * rng.normal(size=(items, 3))
    noise[:, THIRD] -= STRICT * hard
    people = quality + 0.5 * rng.normal(size=items)
    return np.clip(np.round(quality[:, None] + noise), 1, 5), np.clip(np.round(people), 1, 5)


def held(runs: int, seed: int) -> Iterator[Held]:
    """The audit's items, and then all on which the third judge was asked."""
    judges, people = drawn(TRUTH_ITEMS, np.random.default_rng(seed))
    truths = float((judges[:, THIRD] - people).mean()), float(people.mean())
    found: dict[str, list[tuple[bool, bool]]] = {"the audit": [], "all on which it was asked": []}
    for run in range(runs):
        rng = np.random.default_rng((seed, run))
        judges, people = drawn(ITEMS, rng)
        audited = rng.random(ITEMS) < AUDIT
        asked = audited | (np.abs(judges[:, 0] - judges[:, 1]) >= 1)
        rated = np.sort(rng.choice(ITEMS, RATED, replace=False))
        for source, items in zip(found, (audited, asked), strict=True):
            figures = _third(judges, people, rated, items, rng)
            found[source].append((_holds(figures[0], truths[0]), _holds(figures[1], truths[1])))
    for source, rows in found.items():
        bias, mean = np.array(rows).mean(axis=0).tolist()
        yield Held(source, bias, mean)


def _third(
    judges: Floats, people: Floats, rated: Ints, items: Bools, rng: np.random.Generator
) -> tuple[Figure, Figure]:
    """Its bias, and people's mean with its help, from these items as from an audit."""
    of = DimensionScores(
        ReportDimension(id="good", scale_min=1, scale_max=5, panel=RULE), judges[:, :, None],
        People(rated, ("ada",), people[rated, None]), audited=items,
    ).of_audit  # fmt: skip
    assert of is not None
    told = rater_statistics("third", "judge", of.scores[:, THIRD], of, rng)
    assert told.peoples_mean is not None
    return told.bias, told.peoples_mean.powered


def _holds(found: Figure, truth: float) -> bool:
    return found.low is not None and found.high is not None and found.low <= truth <= found.high


def main() -> int:
    parser = argparse.ArgumentParser(description="What an escalating panel's audit tells of its later judges.")
    parser.add_argument("--runs", type=int, default=1000, help="simulated data sets (1000)")
    parser.add_argument("--seed", type=int, default=1, help="where chance starts (1)")
    given = parser.parse_args()
    audit, others = held(given.runs, given.seed)
    for row in (audit, others):
        sys.stdout.write(
            f"from {row.source:26} the bias's interval holds in {row.bias:6.1%}, that of people's mean in "
            f"{row.peoples_mean:6.1%}\n"
        )
    return 0 if min(audit.bias, audit.peoples_mean) >= 0.93 else 1


if __name__ == "__main__":
    sys.exit(main())
