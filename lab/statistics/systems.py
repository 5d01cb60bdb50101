"""Are differences of systems people's differences? `python -m lab.statistics.systems --runs 500`

1,200 texts of six systems are scored by a panel of three judges, and people rate some of them at random, on an even, a
skewed and a binary scale. Judges are fair, ordinary (they use less of the scale, and share errors), or unfair (they
give one system 1.5 points less and another one more). Counted is, over all pairs of systems, how often the 95 %
interval holds people's true difference; of the differences that are clear (p below 0.05 after Holm), how many have the
wrong sign; and in how many jobs any is clear that is none or has the wrong sign: for people's differences by PPI, and
for the panel's own, if they are read as people's. It fails unless people's intervals hold in 93 % or more, one of a
hundred clear signs is wrong at most, and so is a claim in 5 % of the jobs (with three standard errors).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dicast.app.analysis.estimates import Estimate, Floats, Ints
from dicast.app.analysis.groups import Groups, compare_groups
from dicast.app.analysis.powered import powered_groups

ITEMS, SYSTEMS = 1200, 6
QUALITY = np.array([0.45, 0.3, 0.15, 0.0, 0.0, -0.3])
"""Mean quality of each system's texts, in standard deviations of a text's; two are as good as each other."""
CUTS = {"even": (-1.3, -0.5, 0.5, 1.3), "skewed": (-1.9, -1.4, -0.8, 0.1), "binary 20 %": (1.0,)}
UNFAIR = np.array([-1.5, 0.0, 0.0, 0.0, 1.0, 0.0])
JUDGES = {"fair": (1.0, 0.2, 0.0), "ordinary": (0.6, 0.7, 0.0), "unfair": (1.0, 0.2, 1.0)}
"""By name: the slope by quality, the part of its errors that all judges share, and how unfair it is."""
CLEAR = 0.05


@dataclass(frozen=True, slots=True)
class SystemsRow:
    """For one kind of judges, and one way to tell: the share of intervals that hold, the share of pairs that are clear,
    how many signs that tells, the share of these that are wrong, and the share of `jobs` with a false claim."""

    scale: str
    judges: str
    whose: str
    rated: int
    held: float
    width: float
    clear: float
    signs: int
    wrong: float
    false_jobs: float
    unknown: float
    jobs: int

    @property
    def good(self) -> bool:
        most = CLEAR + 3 * (CLEAR * (1 - CLEAR) / self.jobs) ** 0.5
        return self.whose == "panel" or (self.held >= 0.93 and self.wrong <= 0.01 and self.false_jobs <= most)


def drawn(scale: str, judges: str, items: int, rng: np.random.Generator) -> tuple[Floats, Floats, Ints]:
    """The panel's mean and three people's mean of each text, and its system."""
    system = np.arange(items) % SYSTEMS
    quality, cuts = QUALITY[system] + rng.normal(size=items), np.array(CUTS[scale])
    slope, shared, unfair = JUDGES[judges]
    common = rng.normal(size=items)
    seen = [
        slope * quality + unfair * UNFAIR[system] + 0.7 * (shared**0.5 * common + (1 - shared) ** 0.5 * own)
        for own in rng.normal(size=(3, items))
    ]
    panel = np.mean([np.searchsorted(cuts, one) for one in seen], axis=0)
    people = np.mean([np.searchsorted(cuts, quality + 0.6 * rng.normal(size=items)) for _ in range(3)], axis=0)
    return panel, people, system


def truth(scale: str) -> Floats:
    """People's mean of very many texts of each system."""
    _, people, system = drawn(scale, "fair", 1_200_000, np.random.default_rng(0))
    means = np.array([people[system == at].mean() for at in range(SYSTEMS)])
    means[4] = means[3]
    return means


class _Count:
    """What was counted of one way to tell."""

    def __init__(self) -> None:
        self.held: list[bool] = []
        self.widths: list[float] = []
        self.clear: list[bool] = []
        self.wrong: list[bool] = []
        self.false_jobs: list[bool] = []
        self.unknown = 0

    def add(self, found: Groups, true: Floats) -> None:
        pairs, false_claim = combinations(range(SYSTEMS), 2), False
        for difference, (a, b) in zip(found.differences, pairs, strict=True):
            planted = float(true[a] - true[b])
            if not isinstance(difference.difference, Estimate):
                self.unknown += 1
                continue
            self.held.append(difference.difference.holds(planted))
            self.widths.append(difference.difference.width)
            self.clear.append(difference.p is not None and difference.p < CLEAR)
            if self.clear[-1]:
                self.wrong.append(difference.difference.value * planted < 0)
                false_claim |= difference.difference.value * planted <= 0
        self.false_jobs.append(false_claim)


def study(
    runs: int, rated: int, seed: int, scales: Sequence[str] = tuple(CUTS), kinds: Sequence[str] = tuple(JUDGES)
) -> Iterator[SystemsRow]:
    """All rows of these scales and kinds of judges, as they are ready."""
    for scale in scales:
        true, bounds = truth(scale), (0.0, float(len(CUTS[scale])))
        for judges in kinds:
            counts = {"people": _Count(), "panel": _Count()}
            for run in range(runs):
                rng = np.random.default_rng((seed, run))
                panel, people, system = drawn(scale, judges, ITEMS, rng)
                seen = np.full(ITEMS, np.nan)
                chosen = rng.choice(ITEMS, rated, replace=False)
                seen[chosen] = people[chosen]
                item = np.arange(ITEMS)
                counts["people"].add(powered_groups(panel, seen, system, item, rng, bounds=bounds), true)
                counts["panel"].add(compare_groups(panel, system, item, rng, bounds=bounds), true)
            for whose, count in counts.items():
                told = len(count.held)
                yield SystemsRow(
                    scale, judges, whose, rated, float(np.mean(count.held)), float(np.median(count.widths)),
                    float(np.mean(count.clear)), len(count.wrong), sum(count.wrong) / max(1, len(count.wrong)),
                    float(np.mean(count.false_jobs)), count.unknown / (told + count.unknown), runs,
                )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="Whether differences of systems are people's.")
    parser.add_argument("--runs", type=int, default=500, help="simulated jobs a row (500)")
    parser.add_argument("--rated", nargs="+", type=int, default=[120, 300], help="items that people rate (120 300)")
    parser.add_argument("--scales", nargs="+", default=list(CUTS), choices=CUTS, help="scales of people and judges")
    parser.add_argument("--judges", nargs="+", default=list(JUDGES), choices=JUDGES, help="kinds of judges")
    parser.add_argument("--seed", type=int, default=1, help="where chance starts (1)")
    given = parser.parse_args()
    started, bad = time.monotonic(), 0
    titles = "".join(f"{title:>8}" for title in ("held", "width", "clear", "signs", "wrong", "false", "none"))
    sys.stdout.write(f"{'scale':14}{'judges':10}{'told':8}{'rated':>6}{titles}\n")
    for rated in given.rated:
        for row in study(given.runs, rated, given.seed, given.scales, given.judges):
            bad += not row.good
            shares = "".join(f"{share:8.1%}" for share in (row.false_jobs, row.unknown))
            shares = f"{row.held:8.1%}{row.width:8.2f}{row.clear:8.1%}{row.signs:8}{row.wrong:8.2%}{shares}"
            mark = "" if row.good else "  <-- does not hold"
            sys.stdout.write(f"{row.scale:14}{row.judges:10}{row.whose:8}{row.rated:6}{shares}{mark}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{bad} do not hold; {given.runs} runs a row in {time.monotonic() - started:.0f} s\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
