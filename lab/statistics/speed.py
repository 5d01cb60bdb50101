"""How long the statistics of a large run take. `python -m lab.statistics.speed --opinions 1000000`

Four dimensions, three judges, ten systems, and people's ratings of a thousand items: the frame is checked, and for each
dimension everything is computed that a report would tell. The time and the memory of making the data do not count.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

from dicast.app.analysis.agreement import inter_rater_agreement, judge_with_people, person_with_others
from dicast.app.analysis.calibration import cross_fitted
from dicast.app.analysis.combining import combine_mean, effective_judges
from dicast.app.analysis.estimates import Estimate, Floats
from dicast.app.analysis.groups import compare_groups
from dicast.app.analysis.panels import search
from dicast.app.analysis.powered import powered_mean, powered_share
from dicast.app.analysis.ratings import Checked, RatingScale, check, table
from lab.statistics import simulated
from lab.statistics.simulated import LEVELS, RatingWorld

DIMENSIONS = ("faithfulness", "fluency", "coherence", "relevance")
JUDGES = ("judge-0", "judge-1", "judge-2")
PEOPLE = ("person-0", "person-1", "person-2")
SYSTEMS = 10
RATED = 1000
MOST_SECONDS = 60.0
MOST_MB = 1024.0


def opinions(count: int, rng: np.random.Generator) -> pd.DataFrame:
    """A frame with about `count` opinions by judges, and people's ratings of `RATED` of the items."""
    items = max(count // (len(DIMENSIONS) * len(JUDGES)), RATED)
    names = pd.Series([f"item-{item}" for item in range(items)]).astype("category")
    parts = []
    for dimension in DIMENSIONS:
        drawn = simulated.draw(RatingWorld(), items, rng)
        scores = {judge: drawn.judges[:, at] for at, judge in enumerate(JUDGES)}
        scores |= {person: drawn.people[:RATED, at] for at, person in enumerate(PEOPLE)}
        parts += [_part(names[: len(given)], dimension, rater, given) for rater, given in scores.items()]
    return pd.concat(parts, ignore_index=True).astype({"dimension": "category", "rater": "category"})


def everything(frame: pd.DataFrame, rng: np.random.Generator) -> int:
    """Everything that a report tells of these opinions; the number of intervals that came of it."""
    items = frame["item"].unique().tolist()
    checked = check(frame, dict.fromkeys(DIMENSIONS, RatingScale(1, 5)), items)
    return sum(_dimension(checked, dimension, items, rng) for dimension in DIMENSIONS)


def _dimension(checked: Checked, dimension: str, items: list[str], rng: np.random.Generator) -> int:
    scores = table(checked, dimension, items=items)
    judges, people = scores.of(JUDGES), scores.of(PEOPLE)
    found: list[object] = [
        inter_rater_agreement(judges, "ordinal", LEVELS, rng),
        inter_rater_agreement(people, "ordinal", LEVELS, rng),
    ]
    found += [judge_with_people(judges[:, at], people, "ordinal", LEVELS, rng) for at in range(len(JUDGES))]
    found += [person_with_others(people, "ordinal", LEVELS, rng)]
    found += [effective_judges(judges, people, rng)]
    means = combine_mean(people)
    panel = judges.mean(axis=1)
    found += [powered_mean(panel, means), powered_share(panel, means, 4.0)]
    found += [cross_fitted(panel, means, "isotonic", rng), search(judges, means, np.ones(len(JUDGES)), rng)]
    system = np.tile(np.arange(len(items)) % SYSTEMS, len(JUDGES))
    groups = compare_groups(
        judges.T.ravel(), system, np.tile(np.arange(len(items)), len(JUDGES)), rng, bounds=(1.0, 5.0)
    )
    return sum(_intervals(one) for one in (*found, *groups.means))


def _intervals(found: object) -> int:
    if isinstance(found, Estimate):
        return 1
    fields = getattr(found, "__dataclass_fields__", {})
    return sum(_intervals(getattr(found, field)) for field in fields)


def _part(names: pd.Series, dimension: str, rater: str, scores: Floats) -> pd.DataFrame:
    return pd.DataFrame({"item": names, "dimension": dimension, "rater": rater, "score": scores})


def peak_mb() -> float:
    """The most memory this process has had so far, in MB; `ru_maxrss` counts what its parent had when it forked."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description="How long the statistics of a large run take.")
    parser.add_argument("--opinions", type=int, default=1_000_000, help="opinions by judges (1000000)")
    parser.add_argument("--seed", type=int, default=1, help="where chance starts (1)")
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    frame = opinions(given.opinions, rng)
    started, worked = time.monotonic(), time.process_time()
    intervals = everything(frame, rng)
    seconds, memory, cpu = time.monotonic() - started, peak_mb(), time.process_time() - worked
    sys.stdout.write(
        f"{len(frame)} opinions, {intervals} intervals: {cpu:.1f} s of CPU time in {seconds:.1f} s, at most "
        f"{memory:.0f} MB\n"
    )
    return 0 if seconds <= MOST_SECONDS and memory <= MOST_MB else 1


if __name__ == "__main__":
    sys.exit(main())
