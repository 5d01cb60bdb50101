"""Is what was planted found by a whole job? `python -m lab.statistics.recover`

1,200 texts of six systems are judged in four dimensions by three planted judges through real workers, a real store and
the simulated provider; three people have rated 200 of them. The report's figures stand beside what was planted: each
judge's bias and its correlation with one person, people's mean, and the systems' order. It fails if too many intervals
miss (more than 95 % intervals of as many figures would in one of a thousand tries), or if a difference of systems that
is called clear has the wrong sign. It takes about a minute.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from dicast.app.analysis.estimates import Floats
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import DimensionStatistics
from dicast.app.domain.report import Report
from lab.bench.pipeline import Machine

LOW, HIGH = 1, 7
JUDGES = {"fair": (0.7, 0.0), "kind": (0.7, 1.0), "dull": (1.6, -0.5)}
"""By judge its noise and its bias, in points of the scale."""
PEOPLE, PEOPLES_NOISE = ("ada", "ben", "cleo"), 0.8
SYSTEMS = {"a": 0.62, "b": 0.56, "c": 0.5, "d": 0.44, "e": 0.44, "f": 0.36}
"""By system the mean quality of its texts, from 0 to 1; two are as good as each other."""
SPREAD = 0.2
ITEMS, RATED, DIMENSIONS = 1200, 200, 4
TRUTH_ITEMS = 400_000
SMALLEST_CHANCE = 0.001


class PlantedFigure(NamedTuple):
    """One figure beside what was planted."""

    dimension: str
    what: str
    planted: float
    found: Figure

    @property
    def held(self) -> bool:
        found = self.found
        return found.low is not None and found.high is not None and found.low <= self.planted <= found.high


@dataclass(frozen=True, slots=True)
class Planted:
    """What very many such texts would show, the same in each dimension."""

    bias: dict[str, float]
    correlation: dict[str, float]
    systems: dict[str, float]
    """By system the mean of the panel's scores."""


def quality(items: int, rng: np.random.Generator) -> tuple[Floats, list[str]]:
    """How good each text is, from 0 to 1, and whose it is."""
    names = [list(SYSTEMS)[at % len(SYSTEMS)] for at in range(items)]
    means = np.array([SYSTEMS[name] for name in names])
    return np.clip(means + SPREAD * rng.normal(size=items), 0, 1).round(3), names


def seen(of: Floats, noise: float, bias: float, rng: np.random.Generator) -> Floats:
    """The scores of a judge or person: what the simulated provider does, on the scale."""
    exact = LOW + of * (HIGH - LOW) + bias + noise * rng.normal(size=len(of))
    return np.clip(np.round(exact), LOW, HIGH)


def planted(rng: np.random.Generator) -> Planted:
    """The truth, from a very large draw."""
    of, names = quality(TRUTH_ITEMS, rng)
    person, others = seen(of, PEOPLES_NOISE, 0, rng), _others(of, rng)
    judges = {name: seen(of, noise, bias, rng) for name, (noise, bias) in JUDGES.items()}
    panel = np.mean(list(judges.values()), axis=0)
    whose = np.array(names)
    return Planted(
        bias={name: float((scores - person).mean()) for name, scores in judges.items()},
        correlation={name: float(np.corrcoef(scores, others)[0, 1]) for name, scores in judges.items()},
        systems={name: float(panel[whose == name].mean()) for name in SYSTEMS},
    )


def _others(of: Floats, rng: np.random.Generator) -> Floats:
    """The mean of all people but one, which judges are compared with."""
    return np.asarray(np.mean([seen(of, PEOPLES_NOISE, 0, rng) for _ in PEOPLE[1:]], axis=0))


def a_job(items: int, rated: int, rng: np.random.Generator) -> tuple[dict[str, Any], list[float]]:
    """The job, and by dimension people's mean of all its texts, had they rated them."""
    of, names = quality(items, rng)
    dimensions = [f"dimension-{at}" for at in range(DIMENSIONS)]
    chosen = rng.permutation(items)[:rated]
    ratings = {name: {who: seen(of, PEOPLES_NOISE, 0, rng) for who in PEOPLE} for name in dimensions}
    inside = set(chosen.tolist())
    texts = []
    for at in range(items):
        metadata: dict[str, Any] = {"system": names[at]}
        for name, by_person in ratings.items():
            for who, scores in by_person.items():
                metadata[f"{name} {who}"] = float(scores[at]) if at in inside else None
        texts.append({"id": f"i{at}", "text": f"Text {at}.\nQUALITY {of[at]:g}", "metadata": metadata})
    job = {
        "items": texts,
        "agents": [{"name": name, "model": name} for name in JUDGES],
        "dimensions": [
            {"id": name, "instructions": f"Judge {name}.", "scale": {"min": LOW, "max": HIGH}} for name in dimensions
        ],
        "ratings": {"columns": {name: {who: f"{name} {who}" for who in PEOPLE} for name in dimensions}},
        "groups": ["system"],
        "batching": False,
    }
    everybody = [float(np.mean(list(by_person.values()))) for by_person in ratings.values()]
    return job, everybody


def judged(job: dict[str, Any], deadline_s: float) -> Report:
    """The job's report, from real workers."""
    models = [f"{name}:quality_noise={noise},quality_bias={bias}" for name, (noise, bias) in JUDGES.items()]
    options = [part for model in models for part in ("--model", model)]
    with Machine(*options) as machine:
        machine.worker()
        return Report.model_validate(machine.cluster.report(machine.cluster.submit(job), deadline_s))


def lines(report: Report, truth: Planted, everybody: list[float]) -> Iterator[PlantedFigure]:
    """All figures that were planted. The texts are the same in all dimensions, and so is the luck of their draw:
    systems' means are told of the first."""
    assert report.statistics is not None
    if report.statistics.state != "computed":
        raise RuntimeError(f"the statistics are left out: {report.statistics.reason}")
    for of, mean in zip(report.statistics.dimensions, everybody, strict=True):
        for voice in of.voices:
            if voice.kind == "judge":
                yield PlantedFigure(of.dimension, f"{voice.name}: bias", truth.bias[voice.name], voice.bias)
                yield PlantedFigure(
                    of.dimension, f"{voice.name}: Pearson", truth.correlation[voice.name], voice.pearson
                )
        whole = of.voices[-1].peoples_mean
        assert whole is not None
        yield PlantedFigure(of.dimension, "people's mean", mean, whole.powered)
        for group in of.groups[0].means if of is report.statistics.dimensions[0] else ():
            yield PlantedFigure(of.dimension, f"system {group.name}", truth.systems[group.name], group.mean)


def wrong_differences(of: DimensionStatistics, truth: Planted) -> list[str]:
    """Differences that are called clear and have the wrong sign, or are none at all."""
    found = []
    for one in of.groups[0].differences:
        true = SYSTEMS[one.first] - SYSTEMS[one.second]
        if one.p is not None and one.p < 0.05 and (one.difference.value or 0.0) * true <= 0:
            found.append(f"{one.first} - {one.second}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Planted agreement, bias and order of systems, by a whole job.")
    parser.add_argument("--items", type=int, default=ITEMS, help=f"items ({ITEMS})")
    parser.add_argument("--rated", type=int, default=RATED, help=f"items that people rated ({RATED})")
    parser.add_argument("--seed", type=int, default=1, help="where chance starts (1)")
    parser.add_argument("--deadline", type=float, default=600.0, help="seconds that the job may take (600)")
    given = parser.parse_args()
    started = time.monotonic()
    truth = planted(np.random.default_rng(0))
    job, everybody = a_job(given.items, given.rated, np.random.default_rng(given.seed))
    report = judged(job, given.deadline)
    found = list(lines(report, truth, everybody))
    for line in found:
        mark = "" if line.held else "  <-- missed"
        shown = line.found
        told = f"{shown.value:7.3f} ({shown.low:.3f} to {shown.high:.3f})" if shown.is_known else shown.reason
        sys.stdout.write(f"{line.dimension:13}{line.what:18}{line.planted:8.3f}  {told}{mark}\n")
    assert report.statistics is not None
    wrong = [name for of in report.statistics.dimensions for name in wrong_differences(of, truth)]
    missed = sum(not line.held for line in found)
    too_many = stats.binom.sf(missed - 1, len(found), 0.05) < SMALLEST_CHANCE
    first = [of.groups[0].means[0].name for of in report.statistics.dimensions]
    sys.stdout.write(
        f"{report.scored:,} opinions, {len(found) - missed} of {len(found)} intervals hold what was planted; "
        f"first: {', '.join(first)}; clear differences with a wrong sign: {', '.join(wrong) or 'none'}; "
        f"{time.monotonic() - started:.0f} s\n"
    )
    return 1 if too_many or wrong or set(first) != {"a"} else 0


if __name__ == "__main__":
    sys.exit(main())
