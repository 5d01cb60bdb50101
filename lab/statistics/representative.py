"""Are ratings noticed that are no random sample? `python -m lab.statistics.representative --runs 1000`

Three judges score 1,000 items of six systems in four dimensions, and people rate 100 of them: at random, the best ones
by the judges' scores of the first dimension, those on which its judges disagree most, those that people like best,
those of two systems. Counted is in how many jobs any test says that the sample is none, after Holm's correction for
all tests of the job. It fails if it is said of more than 5 % of the random ones (with three standard errors), or of
fewer than 95 % of the others.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Literal

import numpy as np

from dicast.app.analysis.assess import sample_checks
from dicast.app.analysis.estimates import Floats, Ints
from dicast.app.analysis.groups import holm
from dicast.app.analysis.scores import DimensionScores, JobScores, Labels, People
from dicast.app.domain.report import ReportDimension
from lab.statistics import simulated
from lab.statistics.simulated import RatingWorld

ITEMS, RATED, DIMENSIONS, SYSTEMS = 1000, 100, 4, 6
CLEAR, NOTICED = 0.05, 0.95
Case = Literal["random", "best by judges", "most disputed", "best by people", "two systems"]
CASES: tuple[Case, ...] = ("random", "best by judges", "most disputed", "best by people", "two systems")


def noticed(case: Case, rng: np.random.Generator, *, rated: int = RATED) -> bool:
    """Return whether any test of one simulated job says that the rated items are no random sample."""
    drawn = [simulated.draw(RatingWorld(), ITEMS, rng) for _ in range(DIMENSIONS)]
    system = rng.integers(0, SYSTEMS, ITEMS)
    chosen = _chosen(case, drawn[0].judges, np.nanmean(drawn[0].people, axis=1), system, rated, rng)
    labels = {"system": Labels(tuple("abcdef"), system)}
    p = []
    for at, of in enumerate(drawn):
        people = People(chosen, ("ada", "ben", "cleo"), of.people[chosen])
        dimension = DimensionScores(
            ReportDimension(id=f"d{at}", scale_min=1, scale_max=5), of.judges[..., None], people
        )
        job = JobScores(ITEMS, ("j0", "j1", "j2"), (dimension,), labels if at == 0 else {})
        p += [check.p for check in sample_checks(job, dimension, of.judges.mean(axis=1))]
    return bool(holm(np.array(p)).min() < CLEAR)


def _chosen(case: Case, judges: Floats, people: Floats, system: Ints, rated: int, rng: np.random.Generator) -> Ints:
    pull = {
        "random": rng.random(ITEMS),
        "best by judges": judges.mean(axis=1),
        "most disputed": judges.std(axis=1),
        "best by people": people,
        "two systems": (system < 2).astype(float),
    }[case]
    return np.sort(np.lexsort((rng.random(ITEMS), -pull))[:rated])


def main() -> int:
    parser = argparse.ArgumentParser(description="How often ratings that are no random sample are noticed.")
    parser.add_argument("--runs", type=int, default=1000, help="simulated jobs a row (1000)")
    parser.add_argument("--rated", type=int, default=RATED, help=f"items that people rate ({RATED})")
    parser.add_argument("--seed", type=int, default=1, help="where chance starts (1)")
    given = parser.parse_args()
    started, bad = time.monotonic(), 0
    for case in CASES:
        found = sum(
            noticed(case, np.random.default_rng((given.seed, run)), rated=given.rated) for run in range(given.runs)
        )
        share, most = found / given.runs, CLEAR + 3 * (CLEAR * (1 - CLEAR) / given.runs) ** 0.5
        good = share <= most if case == "random" else share >= NOTICED
        bad += not good
        sys.stdout.write(f"{case:16}{share:8.1%}{'' if good else '  <-- does not hold'}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{bad} do not hold; {given.runs} runs a row in {time.monotonic() - started:.0f} s\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
