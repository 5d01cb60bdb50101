"""Do probes accuse judges who have no bias? `python -m lab.statistics.probes --jobs 500`

Jobs are simulated in which unbiased judges, who err, are probed for everything that can be tried out, and it is counted
in how many jobs any judge is accused: p below 0.05 after Holm's correction for all of a dimension's probes and judges.
Beside it, how often the intervals of planted biases hold what was planted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dicast.app.analysis.assess import assess
from dicast.app.analysis.estimates import Floats
from dicast.app.analysis.scores import DimensionScores, JobScores, VariedItems
from dicast.app.domain.report import ReportDimension
from dicast.app.domain.variants import ATTACKS

LABELS = (
    *(f"injection:{attack.id}" for attack in ATTACKS), "authority:high", "authority:low", "sycophancy:high",
    "sycophancy:low", "markdown:marked", "batching:single", "order:reversed",
)  # fmt: skip
LOW, HIGH = 0, 10
CLEAR = 0.05
MOST_ACCUSED = 0.06


@dataclass(frozen=True, slots=True)
class Bent:
    """A judge whose scores err by `noise` (by `restless` also from round to round), who `obeys` a share of attacks, and
    gives so many points more for what else is tried out (of claims: more for a high one, less for a low one)."""

    noise: float = 0.6
    restless: float = 0.0
    obeys: float = 0.0
    authority: float = 0.0
    sycophancy: float = 0.0
    markdown: float = 0.0
    batched: float = 0.0
    reversed: float = 0.0

    def shift(self, label: str) -> float:
        """What a variant adds to the score of the item as it is, which is judged in a batch."""
        probe, _, variant = label.partition(":")
        sign = -1.0 if variant == "low" else 1.0
        return {
            "authority": sign * self.authority, "sycophancy": sign * self.sycophancy, "markdown": self.markdown,
            "batching": -self.batched, "order": self.reversed, "injection": 0.0,
        }[probe]  # fmt: skip


def a_probed_job(
    rng: np.random.Generator, judges: Sequence[Bent], *, items: int = 200, drawn: int = 50, rounds: int = 1
) -> JobScores:
    """A job on a scale from 0 to 10, of whose items `drawn` were judged once more for each probe."""
    quality = rng.uniform(3, 7, items)
    label, item = [], []
    for at in range(len(ATTACKS), len(LABELS)):
        label += [at] * drawn
        item += sorted(rng.choice(items, drawn, replace=False).tolist())
    text = [at for at, attack in enumerate(ATTACKS) if attack.place == "text"]
    label += [text[n % len(text)] for n in range(drawn)]
    item += sorted(rng.choice(items, drawn, replace=False).tolist())
    variants = VariedItems(LABELS, np.array(label), np.array(item))
    scores = np.stack([_scored(rng, judge, quality, rounds) for judge in judges], axis=1)
    varied = np.stack([_varied(rng, judge, quality, variants, rounds) for judge in judges], axis=1)
    of = DimensionScores(ReportDimension(id="clear", scale_min=LOW, scale_max=HIGH), scores, varied=varied)
    return JobScores(items, tuple(f"j{at}" for at in range(len(judges))), (of,), variants=variants)


def _scored(rng: np.random.Generator, judge: Bent, seen: Floats, rounds: int) -> Floats:
    """items x rounds"""
    seen = seen[:, None] + judge.noise * (judge.restless == 0) * rng.normal(size=(len(seen), 1))
    return np.clip(np.round(seen + judge.restless * rng.normal(size=(len(seen), rounds))), LOW, HIGH)


def _varied(rng: np.random.Generator, judge: Bent, quality: Floats, variants: VariedItems, rounds: int) -> Floats:
    """variants x rounds"""
    shift = np.array([judge.shift(LABELS[code]) for code in variants.label])
    scores = _scored(rng, judge, quality[variants.item] + shift, rounds)
    aims = {at: HIGH if attack.aim == "high" else LOW for at, attack in enumerate(ATTACKS)}
    for row in np.flatnonzero(variants.label < len(ATTACKS)):
        if rng.random() < judge.obeys:
            scores[row] = aims[int(variants.label[row])]
    return scores


def accused(job: JobScores) -> tuple[bool, int]:
    """Whether any judge is, and how many comparisons there were."""
    (of,) = assess(job).dimensions
    found = [probe.p for probe in of.probes if probe.p is not None]
    return any(p < CLEAR for p in found), len(found)


def main() -> int:
    parser = argparse.ArgumentParser(description="How often unbiased judges are accused of a bias.")
    parser.add_argument("--jobs", type=int, default=200, help="simulated jobs (200)")
    parser.add_argument("--judges", type=int, default=3, help="judges of each (3)")
    parser.add_argument("--drawn", type=int, default=50, help="items that each probe draws (50)")
    parser.add_argument("--seed", type=int, default=1, help="where chance starts (1)")
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    wrong, comparisons = 0, 0
    for _ in range(given.jobs):
        one, comparisons = accused(a_probed_job(rng, [Bent()] * given.judges, drawn=given.drawn))
        wrong += one
    share = wrong / given.jobs
    spread = 2 * np.sqrt(MOST_ACCUSED * (1 - MOST_ACCUSED) / given.jobs)
    sys.stdout.write(
        f"{given.jobs} jobs, {comparisons} comparisons each: an unbiased judge is accused in {100 * share:.1f} %\n"
    )
    return 0 if share <= MOST_ACCUSED + spread else 1


if __name__ == "__main__":
    sys.exit(main())
