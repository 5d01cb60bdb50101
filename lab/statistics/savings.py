"""How much narrower is an interval with the judges' help? `python -m lab.statistics.savings`

Of 1,200 items that a judge scored people rated 200; judge and people correlate by 0.7 or by 0.9. The interval of
people's mean by prediction-powered inference is put beside the one from their ratings alone, over many simulated data
sets. In theory it is sqrt(1 - r^2 (1 - n/N)) times as wide, which is 0.77 and 0.57. It fails where the median is above
0.80, or 0.60, or where the intervals hold less than 93 % of the truth.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dicast.app.analysis.estimates import Estimate
from dicast.app.analysis.powered import powered_mean

ITEMS, RATED, RUNS = 1200, 200, 500
AT_MOST = {0.7: 0.80, 0.9: 0.60}
FEWEST_HELD = 0.93


class Saving(NamedTuple):
    """At one correlation: the median ratio of the widths, and how often the interval held people's mean."""

    correlation: float
    ratio: float
    held: float

    @property
    def theory(self) -> float:
        return float(np.sqrt(1 - self.correlation**2 * (1 - RATED / ITEMS)))

    @property
    def good(self) -> bool:
        return self.ratio <= AT_MOST[self.correlation] and self.held >= FEWEST_HELD


def savings(runs: int, seed: int) -> Iterator[Saving]:
    """All correlations."""
    for correlation in AT_MOST:
        ratios, held = [], []
        for run in range(runs):
            rng = np.random.default_rng((seed, run))
            judge = rng.normal(3, 1, ITEMS)
            people = 3 + correlation * (judge - 3) + np.sqrt(1 - correlation**2) * rng.normal(size=ITEMS)
            some = np.full(ITEMS, np.nan)
            chosen = rng.choice(ITEMS, RATED, replace=False)
            some[chosen] = people[chosen]
            found = powered_mean(judge, some)
            assert isinstance(found.both, Estimate) and isinstance(found.people_alone, Estimate)
            ratios.append(found.both.width / found.people_alone.width)
            held.append(found.both.holds(3.0))
        yield Saving(correlation, float(np.median(ratios)), float(np.mean(held)))


def main() -> int:
    parser = argparse.ArgumentParser(description="The width of powered intervals beside people's alone.")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"simulated data sets ({RUNS})")
    parser.add_argument("--seed", type=int, default=1, help="where chance starts (1)")
    given = parser.parse_args()
    failed = 0
    for one in savings(given.runs, given.seed):
        failed += not one.good
        sys.stdout.write(
            f"correlation {one.correlation}: {one.ratio:.3f} as wide (theory {one.theory:.3f}, at most "
            f"{AT_MOST[one.correlation]:.2f}), held {one.held:.1%}{'' if one.good else '  <-- no'}\n"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
