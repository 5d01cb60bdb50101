"""Finished jobs of six kinds, as a reader meets them: systems, no groups, pairs, rankings, labels, and all failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from dicast.app.domain.item import Item, Rating
from dicast.app.domain.opinion import ErrorKind, EvaluationError, Opinion
from dicast.app.domain.report import Report, ReportAgent, ReportDimension
from dicast.app.reports import files
from dicast.app.reports.folders import begin, job_folder
from dicast.app.reports.statistics import evaluated, keep_evaluated
from dicast.app.reports.stored_items import write_items, write_ratings
from tests.reports.building import NOW, error, header, opinion

Made = tuple[Path, Report]
SYSTEMS = {"gpt-4o-bot": 0.8, "claude-bot": 0.55, "in-house-v2": 0.0, "rules-2019": -1.0}
JUDGES = {"strict editor": (-0.5, 0.5), "friendly customer": (0.4, 0.55), "night shift": (0.0, 2.2)}
"""How far each judge is off, and how noisy it is."""
DIMENSIONS = {"correct": "Correct", "clear": "Clear", "complete": "Complete", "tone": "Tone"}
RATERS = ("ada", "ben")
NAMES = ("apple", "birch", "cedar", "douglas")


def _job(
    root: Path, name: str, opinions: list[Opinion], errors: list[EvaluationError], ratings: list[Rating],
    **changes: Any,
) -> Made:  # fmt: skip
    begin(root, name, NOW)
    files.write_page(root, name, NOW, "0", 0, opinions, errors)
    ids = dict.fromkeys(opinion.item_id for opinion in opinions)
    text = "I am sorry for the delay. Your refund of 40 euros was sent on Monday and should arrive within three days."
    write_items(root, name, NOW, [[Item(id=of, text=text, prompt=f"Where is my refund? ({of})") for of in ids]])
    if ratings:
        write_ratings(root, name, NOW, ratings)
    given = {"job_id": name, "rated": bool(ratings), "agents": [ReportAgent(name=judge, model="m") for judge in JUDGES]}
    report = files.finish(root, name, NOW, header(len(opinions), **{**given, **changes}))
    folder = job_folder(root, name)
    if report.statistics is not None and report.statistics.state == "waiting" and report.scored:
        report = keep_evaluated(folder, report, evaluated(folder, report))
    return folder, report


def _scores(
    items: int, keep: Callable[[int], dict[str, Any]], failed: int, changed: str = ""
) -> tuple[list[Opinion], list[EvaluationError], list[Rating]]:
    """Scores of 1 to 5 of items whose worth goes by their system; the noisy judge fails on the first `failed`."""
    rng = np.random.default_rng(4)
    opinions, errors, ratings = [], [], []
    for n in range(items):
        kept = keep(n)
        for dimension in DIMENSIONS:
            scale = {"correct": 1.0, "clear": 0.4, "complete": 0.7, "tone": 0.5}[dimension]
            system = kept.get("system", "")
            truth = 3.2 + scale * SYSTEMS.get(system, 0.0) - (bool(changed) and system == changed) + rng.normal(0, 0.7)
            for judge, (bias, noise) in JUDGES.items():
                score: int | None = int(np.clip(round(truth + bias + rng.normal(0, noise)), 1, 5))
                if judge == "night shift" and n < failed:
                    score = None
                    message = "content filter of the provider"
                    errors.append(
                        error(n, judge, criterion_id=dimension, kind=ErrorKind.REJECTED, status_code=400,
                              message=message)
                    )  # fmt: skip
                opinions.append(opinion(n, judge, score, criterion_id=dimension, metadata=kept))
            if n < 80:
                off = 1.6 if dimension == "tone" else 0.5
                ratings += [
                    Rating(f"item-{n}", dimension, who, float(np.clip(round(truth + rng.normal(0, off)), 1, 5)))
                    for who in RATERS
                ]
    return opinions, errors, ratings


def _dimensions() -> list[ReportDimension]:
    return [ReportDimension(id=id, name=name, scale_min=1, scale_max=5) for id, name in DIMENSIONS.items()]


def systems(root: Path, name: str = "support-bots-november", changed: str = "") -> Made:
    """Four systems in four dimensions, with a noisy judge, failures and two raters; one may have become worse."""
    names = list(SYSTEMS)
    opinions, errors, ratings = _scores(400, lambda n: {"system": names[n % 4]}, 5, changed)
    changes: dict[str, Any] = {"dimensions": _dimensions(), "keep": ["system"], "groups": ["system"]}
    return _job(root, name, opinions, errors, ratings, **changes)


def scores(root: Path, name: str = "essays") -> Made:
    """One group of items, and nobody has rated them."""
    opinions, errors, _ = _scores(60, lambda n: {}, 0)
    return _job(root, name, opinions, errors, [], dimensions=_dimensions())


def _preferences(items: list[dict[str, Any]], first: Callable[[dict[str, Any]], float]) -> Iterator[Opinion]:
    rng = np.random.default_rng(5)
    for n, kept in enumerate(items):
        for judge in JUDGES:
            score = int(np.digitize(rng.random(), [0.45 - first(kept), 0.55 - first(kept)])) - 1
            labels = ("B", "tie", "A")
            yield opinion(n, judge, score, criterion_id="better", label=labels[score + 1], metadata=kept)


BETTER = ReportDimension(
    id="better", name="Better answer", scale_min=-1, scale_max=1, kind="preference", labels=["B", "tie", "A"]
)


def pairs(root: Path, name: str = "old-against-new") -> Made:
    """Pairs of two systems, of which the second is better."""
    items = [dict(zip(("system_a", "system_b"), ("old", "new")[:: (-1) ** n], strict=True)) for n in range(120)]
    given = list(_preferences(items, lambda kept: 0.3 if kept["system_a"] == "new" else -0.3))
    return _job(root, name, given, [], [], dimensions=[BETTER], keep=["system_a", "system_b"])


def rankings(root: Path, name: str = "four-drafts") -> Made:
    """Lists of four candidates, ranked by comparing them in pairs; the first is better than all others."""
    items = [
        {"list": f"list-{n}", "candidate_a": NAMES[a], "candidate_b": NAMES[b]}
        for n in range(20)
        for a, b in combinations(range(4), 2)
    ]
    worth = dict(zip(NAMES, (0.6, 0.1, 0.05, 0.0), strict=True))
    given = list(_preferences(items, lambda kept: 0.5 * (worth[kept["candidate_a"]] - worth[kept["candidate_b"]])))
    return _job(root, name, given, [], [], dimensions=[BETTER], keep=["list", "candidate_a", "candidate_b"])


def labels(root: Path, name: str = "topics") -> Made:
    """Labels without an order, and with one."""
    rng = np.random.default_rng(6)
    topics, grades = ["arts", "law", "sport"], ["poor", "fair", "good", "excellent"]
    dimensions = [
        ReportDimension(
            id="topic", name="Topic", scale_min=0, scale_max=2, kind="labels", labels=topics, ordered=False
        ),
        ReportDimension(id="grade", name="Grade", scale_min=0, scale_max=3, kind="labels", labels=grades),
    ]  # fmt: skip
    given, ratings = [], []
    for n in range(90):
        topic, grade = int(rng.choice(3, p=[0.6, 0.25, 0.15])), int(rng.choice(4, p=[0.1, 0.2, 0.5, 0.2]))
        for judge in JUDGES:
            said = topic if rng.random() < 0.85 else int(rng.integers(3))
            given.append(opinion(n, judge, said, criterion_id="topic", label=topics[said]))
            said = int(np.clip(grade + rng.integers(-1, 2), 0, 3))
            given.append(opinion(n, judge, said, criterion_id="grade", label=grades[said]))
        if n < 40:
            ratings += [
                Rating(f"item-{n}", of, who, float(value))
                for who in RATERS
                for of, value in (("topic", topic), ("grade", grade))
            ]
    return _job(root, name, given, [], ratings, dimensions=dimensions)


def failed(root: Path, name: str = "wrong-key") -> Made:
    """Nothing has a score, since the key is wrong."""
    opinions = [opinion(n, judge, None, criterion_id="correct") for n in range(20) for judge in JUDGES]
    errors = [
        error(n, judge, criterion_id="correct", kind=ErrorKind.REJECTED, status_code=401, message="invalid API key")
        for n in range(20) for judge in JUDGES
    ]  # fmt: skip
    return _job(root, name, opinions, errors, [], dimensions=_dimensions()[:1])


KINDS: dict[str, Callable[[Path], Made]] = {
    "systems": systems, "scores": scores, "pairs": pairs, "rankings": rankings, "labels": labels, "nothing": failed,
}  # fmt: skip
