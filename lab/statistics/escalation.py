"""What an escalating panel saves, on real workers. `python -m lab.statistics.escalation --items 300`

Three planted judges of the simulated provider (each sees a text's quality with noise of its own) judge the same items
as a full panel and as escalating ones, one rule after the other. A judge answers the same question alike, so a verdict
that differs from the full panel's is an error of the escalation, wherever it promises the full panel's verdict. For an
uncertainty, judges are asked twice, and err anew each time besides.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from lab.bench.pipeline import Machine

NOISE = {"quick": 0.3, "second": 0.3, "careful": 0.25}
SCALE = {"min": 1, "max": 5}
RESTLESS = 0.5
ENDS_S = 600.0


class Rule(NamedTuple):
    """A panel, how it escalates, and how often each judge is asked."""

    panel: dict[str, Any]
    escalate: Any = True
    replicates: int = 1


RULES = {
    "majority": Rule({"combine": "majority"}),
    "worst": Rule({"combine": "worst"}),
    "median": Rule({"combine": "median"}),
    "majority, 4 or more": Rule({"combine": "majority", "threshold": 4}),
    "mean, 4 or more": Rule({"combine": "mean", "threshold": 4}),
    "mean, difference 1": Rule({"combine": "mean"}, {"difference": 1}),
    "mean, uncertainty 0.3": Rule({"combine": "mean"}, {"uncertainty": 0.3}, replicates=2),
}


class Saved(NamedTuple):
    """One rule: the escalating panel's calls as a share of the full one's, and how many verdicts differ."""

    rule: str
    share: float
    verdicts: int
    differ: int
    shift: float


def job_of(items: int, panel: Mapping[str, Any], replicates: int, seed: int) -> dict[str, Any]:
    """The job, the same but for its panel; who is asked several times is restless."""
    kind = "-restless" if replicates > 1 else ""
    chance = random.Random(seed)
    texts = [f"QUALITY {chance.betavariate(4, 2):.3f}\nA text, number {n}." for n in range(items)]
    return {
        "items": [{"id": f"item-{n}", "text": text} for n, text in enumerate(texts)],
        "agents": [{"name": name, "model": name + kind, "persona": f"You are {name}."} for name in NOISE],
        "dimensions": [{"id": "good", "instructions": "Is it good?", "scale": SCALE}],
        "panel": dict(panel),
        "replicates": replicates,
        "fail_fast": 0,
    }


def compared(machine: Machine, rule: str, items: int, seed: int) -> tuple[Saved, float]:
    """What a rule saved, and how often the first two judges agreed."""
    panel, escalate, replicates = RULES[rule]
    full, short = ({**panel}, {**panel, "escalate": escalate})
    found, scores = [], []
    for given in (full, short):
        job = machine.cluster.submit(job_of(items, given, replicates, seed))
        found.append(machine.cluster.report(job, ENDS_S))
        rows = pq.read_table(machine.cluster.results / job / "panel.parquet").to_pylist()
        scores.append({row["item_id"]: row["score"] for row in rows})
    by_judge: dict[str, dict[str, int]] = {name: {} for name in NOISE}
    for opinion in machine.cluster.opinions(found[0]["job_id"]):
        by_judge[opinion["judge"]].setdefault(opinion["item_id"], opinion["score"])
    agree = sum(by_judge["quick"][item] == by_judge["second"][item] for item in scores[0]) / items
    differ = [item for item, score in scores[0].items() if scores[1][item] != score]
    shift = sum(scores[1].values()) / items - sum(scores[0].values()) / items
    assert found[1]["calls"] + found[1]["spared"] == found[0]["calls"] == 3 * items * replicates
    return Saved(rule, found[1]["calls"] / found[0]["calls"], items, len(differ), shift), agree


def main() -> int:
    parser = argparse.ArgumentParser(description="What an escalating panel saves, on real workers.")
    parser.add_argument("--items", type=int, default=300, help="items (300)")
    parser.add_argument("--seed", type=int, default=1, help="where chance starts (1)")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES), help="which ones (all)")
    given = parser.parse_args()
    eyes = {f"{name}{kind}": f"quality_noise={noise}{more}" for name, noise in NOISE.items()
            for kind, more in (("", ""), ("-restless", f",restless={RESTLESS}"))}  # fmt: skip
    models = [option for name, eye in eyes.items() for option in ("--model", f"{name}:{eye}")]
    wrong = 0
    with Machine(*models, "--latency", "0.01", MAX_CONCURRENT_LLM_CALLS="20") as machine:
        machine.worker()
        for rule in given.rules:
            saved, agree = compared(machine, rule, given.items, given.seed)
            wrong += saved.differ if RULES[rule].escalate is True else 0
            sys.stdout.write(
                f"{rule:20} calls {saved.share:6.1%}   verdicts that differ {saved.differ:3} of {saved.verdicts}   "
                f"mean shift {saved.shift:+.3f}   (the first two agree in {agree:.0%})\n"
            )
            sys.stdout.flush()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
