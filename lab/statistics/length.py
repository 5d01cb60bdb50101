"""Are judges accused of favouring length who only use less of the scale? `python -m lab.statistics.length --runs 1000`

People rate 300 texts on a scale from 1 to 7 and like longer ones better, by half a point a doubling. Judges follow them
with a slope of .3, .5, .8 or 1, and have no bias, or give half a point more a doubling. Counted is how often the probe
finds one (p below 0.05), and how often its interval holds what was planted; beside it the plain slope of the difference
from people, which is what the probe was before. Texts have three raters, or one, or one and some of them a second. It
fails if a judge without a bias is accused in more than 5 % of the runs (with three standard errors), or one with a bias
is found in fewer than 80 %, unless no text has two raters.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dicast.app.analysis.biases import effect_beside_people
from dicast.app.analysis.estimates import Estimate, Floats, slope

LOW, HIGH = 1, 7
SLOPES = (0.3, 0.5, 0.8, 1.0)
PLANTED = (0.0, 0.5)
LIKED = 0.5
CLEAR = 0.05
FOUND = 0.8


@dataclass(frozen=True, slots=True)
class LengthCase:
    """Who rated the texts: `raters` all of them, and one more `twice` of them."""

    raters: int
    twice: int = 0

    @property
    def name(self) -> str:
        return f"{self.raters} + {self.twice} texts" if self.twice else f"{self.raters}"


CASES = (LengthCase(3), LengthCase(1), LengthCase(1, twice=30), LengthCase(1, twice=100))


@dataclass(frozen=True, slots=True)
class LengthRow:
    """How often the probe found a bias, how often its interval held, and how often the plain slope found one."""

    case: LengthCase
    slope: float
    planted: float
    found: float
    held: float
    plain: float
    runs: int

    @property
    def good(self) -> bool:
        most = CLEAR + 3 * float(np.sqrt(CLEAR * (1 - CLEAR) / self.runs))
        if self.planted == 0:
            return self.found <= most
        return self.case == LengthCase(1) or self.found >= FOUND


def drawn(
    slope_of_judge: float, planted: float, case: LengthCase, rated: int, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats]:
    """Doublings of length, the judge's scores, and people's (items x raters)."""
    doublings = rng.normal(size=rated)
    quality = LIKED * doublings + rng.normal(size=rated)
    judge = 4 + slope_of_judge * quality + planted * doublings + 0.7 * rng.normal(size=rated)
    people = 4 + quality[:, None] + 0.8 * rng.normal(size=(rated, case.raters + (case.twice > 0)))
    ratings = np.clip(np.round(people), LOW, HIGH)
    if case.twice:
        ratings[case.twice :, -1] = np.nan
    return doublings, np.clip(np.round(judge), LOW, HIGH), ratings


def study(runs: int, rated: int, seed: int) -> Iterator[LengthRow]:
    """All rows, as they are ready."""
    for case in CASES:
        yield from study_case(case, runs, rated, seed)


def study_case(case: LengthCase, runs: int, rated: int, seed: int) -> Iterator[LengthRow]:
    """The rows of one case."""
    for planted in PLANTED:
        for slope_of_judge in SLOPES:
            found, held, plain = 0, 0, 0
            for run in range(runs):
                rng = np.random.default_rng((seed, run))
                x, judge, people = drawn(slope_of_judge, planted, case, rated, rng)
                effect, p = effect_beside_people(x, judge, people)
                found += p is not None and p < CLEAR
                held += isinstance(effect, Estimate) and effect.holds(planted)
                plain += slope(x, judge - np.nanmean(people, axis=1)).p < CLEAR
            yield LengthRow(case, slope_of_judge, planted, found / runs, held / runs, plain / runs, runs)


def main() -> int:
    parser = argparse.ArgumentParser(description="How often judges are accused of favouring length.")
    parser.add_argument("--runs", type=int, default=1000, help="simulated jobs a row (1000)")
    parser.add_argument("--rated", type=int, default=300, help="items that people rate (300)")
    parser.add_argument("--seed", type=int, default=1, help="where chance starts (1)")
    given = parser.parse_args()
    started, bad = time.monotonic(), 0
    sys.stdout.write(f"{'raters':16}{'slope':>6}{'planted':>9}{'found':>8}{'held':>8}{'plain slope':>13}\n")
    for row in study(given.runs, given.rated, given.seed):
        bad += not row.good
        shares = f"{row.found:8.1%}{row.held:8.1%}{row.plain:13.1%}"
        mark = "" if row.good else "  <-- does not hold"
        sys.stdout.write(f"{row.case.name:16}{row.slope:6}{row.planted:9}{shares}{mark}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{bad} do not hold; {given.runs} runs a row in {time.monotonic() - started:.0f} s\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
