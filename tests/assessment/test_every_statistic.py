"""Every statistic in a report has an interval or says why not, from the files on to what is printed; bad input too."""

from __future__ import annotations

import math
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel
from rich.console import Console

import dicast
from dicast.app.analysis.assess import assess
from dicast.app.domain.figure import Figure
from dicast.app.domain.item import Rating
from dicast.app.domain.judge_statistics import JobStatistics
from dicast.app.domain.report import Report, ReportAgent, ReportDimension
from dicast.app.reports import files
from dicast.app.reports.folders import begin, job_folder
from dicast.app.reports.statistics import compute
from dicast.app.reports.stored_items import write_ratings
from dicast.app.reports.terminal_statistics import print_statistics
from lab.statistics.probes import Bent, a_probed_job
from tests.reports.building import NOW, header, opinion

NO_ESTIMATES = {
    "missing": "counted in these data",
    "base_rate": "counted in these data, to read kappa beside it",
    "judges_weight": "part of how an estimate is made",
    "raters_apart": "part of how an estimate is made",
    "saved": "the ratio of two intervals' widths",
    "bias_p": "a p-value",
    "leader_p": "a p-value",
    "p_values": "p-values",
    "pearson_p": "a p-value",
    "share": "of variances that have intervals",
    "generalizability": "follows from variances that have intervals",
    "dependability": "follows from variances that have intervals",
    "error_of_mean": "an error itself",
    "winning_rates": "shares of people, by tests whose errors are bounded",
    "people_ranks": "probabilities of ranks",
    "p": "corrected for all that were compared",
    "ranks": "probabilities, which say themselves how sure they are",
    "worst_case.low": "a bound that holds for certain",
    "worst_case.high": "a bound that holds for certain",
    "attacks.shift": "the largest of many, chosen for that",
}
"""Numbers that need no interval, and why; all others are figures."""


def numbers(found: BaseModel, path: str = "") -> Iterator[tuple[str, float]]:
    """All fractions that are in no figure."""
    for name, value in found:
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, float):
                yield f"{path}{name}", one
            elif isinstance(one, BaseModel) and not isinstance(one, Figure):
                yield from numbers(one, f"{path}{name}.")


def figures(found: BaseModel) -> Iterator[Figure]:
    for _, value in found:
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Figure):
                yield one
            elif isinstance(one, BaseModel):
                yield from figures(one)


def held(found: JobStatistics) -> None:
    """What the rule says, of each number there is."""
    assert [of for of in found.dimensions if not of.summary] == []
    for one in figures(found):
        if one.reason is None:
            assert one.value is not None and one.low is not None and one.high is not None and one.low <= one.high
            assert all(map(math.isfinite, (one.value, one.low, one.high))) and one.items > 0 and one.method
        else:
            assert one.value is one.low is one.high is None and one.reason[0].islower() and one.reason[-1] != "."
    for path, value in numbers(found):
        last = path.split(".")
        assert {last[-1], ".".join(last[-2:])} & set(NO_ESTIMATES), f"{path} has neither an interval nor a reason"
        assert math.isfinite(value), path


ITEMS = 60
Scores = dict[str, Any]


def job(root: Path, judges: Scores, people: Scores, items: int = ITEMS, **changes: Any) -> tuple[Path, Report]:
    """A finished job of one or more judges; people have rated its first dimension."""
    begin(root, "job-1", NOW)
    opinions = [
        opinion(n, judge, None if math.isnan(scores[n]) else int(scores[n]), criterion_id=dimension,
                metadata={"system": "ab"[n % 2], "doc": f"d{n // 3}", "text.chars": 10 + n})
        for n in range(items)
        for judge, scores in judges.items()
        for dimension in ("clear", "true")
    ]  # fmt: skip
    files.write_page(root, "job-1", NOW, "0", 0, opinions, [])
    ratings = [
        Rating(f"item-{n}", "clear", person, float(score))
        for person, scores in people.items()
        for n, score in enumerate(scores)
        if not math.isnan(score)
    ]
    write_ratings(root, "job-1", NOW, ratings)
    given = {
        "agents": [ReportAgent(name=name, model="m") for name in judges],
        "dimensions": [ReportDimension(id=name, scale_min=1, scale_max=5) for name in ("clear", "true")],
        "keep": ["system", "doc", "text.chars"], "groups": ["system"], "rated": True, "probes": ["verbosity"],
        **changes,
    }  # fmt: skip
    return job_folder(root, "job-1"), files.finish(root, "job-1", NOW, header(len(opinions), **given))


def draws(names: str, items: int = ITEMS, seed: int = 1) -> Scores:
    rng = np.random.default_rng(seed)
    quality = rng.normal(3, 1, items)
    return {name: np.clip(np.round(quality + rng.normal(0, 0.7, items)), 1, 5) for name in names.split()}


def same(names: str, value: float, items: int = ITEMS) -> Scores:
    return {name: np.full(items, value) for name in names.split()}


def test_probes_have_intervals_or_reasons_too() -> None:
    found = assess(a_probed_job(np.random.default_rng(1), [Bent(), Bent(obeys=0.6)], items=60, drawn=30, rounds=2))
    held(found)
    probes = [probe for of in found.dimensions for probe in of.probes]
    assert sum(probe.effect.is_known for probe in probes) > 10 and any(probe.families for probe in probes)


GOOD = draws("strict kind"), draws("ada ben", seed=2)
CASES: dict[str, tuple[Any, ...]] = {
    "as it should be": (draws("strict kind ada ben"), None),
    "one judge": (draws("strict"), draws("ada ben")),
    "one rater": (draws("strict kind"), draws("ada")),
    "judges all equal": (same("strict kind", 4), draws("ada ben")),
    "people all equal": (draws("strict kind"), same("ada ben", 5)),
    "everybody equal": (same("strict kind", 1), same("ada ben", 1)),
    "judges who say what people say": (draws("strict kind", seed=3), draws("strict kind", seed=3)),
    "two items": (draws("strict kind", 2), draws("ada ben", 2), 2),
    "one item": (draws("strict kind", 1), draws("ada ben", 1), 1),
    "a judge without any score": ({**draws("strict"), **same("kind", math.nan)}, draws("ada ben")),
    "no score at all but one": ({"strict": np.array([3.0] + [math.nan] * 59), **same("kind", math.nan)}, draws("ada")),
    "people who rated other items each": (draws("strict kind"), {
        "ada": np.where(np.arange(ITEMS) < 30, 3.0 + np.arange(ITEMS) % 2, math.nan),
        "ben": np.where(np.arange(ITEMS) < 30, math.nan, 2.0 + np.arange(ITEMS) % 3),
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_statistic_has_an_interval_or_says_why_not(tmp_path: Path, name: str) -> None:
    """Warnings are errors here, those from inside libraries, too. Nobody has rated the second dimension, ever."""
    judges, people, *items = CASES[name]
    if people is None:
        judges, people = ({k: judges[k] for k in names.split()} for names in ("strict kind", "ada ben"))
    folder, report = job(tmp_path, judges, people, *items)
    found = compute(folder, report)
    held(found)
    assert JobStatistics.model_validate_json(found.model_dump_json()) == found
    rated, unrated = found.dimensions
    assert unrated.person is None and "Nobody has rated this dimension" in unrated.summary[0]
    if name == "as it should be":
        assert sum(one.is_known for one in figures(rated)) > 40
    out = StringIO()
    kept = report.model_copy(update={"statistics": found})
    print_statistics(kept, Console(file=out, width=120), figures=True)
    assert "nan" not in out.getvalue().lower().replace("finance", "") and "None" not in out.getvalue()
    assert len(dicast.statistics_frame(kept, tmp_path)) == len(list(figures(found)))


def test_a_frame_has_a_row_for_each_figure(tmp_path: Path) -> None:
    judges, people = GOOD
    folder, report = job(tmp_path, judges, people)
    found = compute(folder, report)
    frame = dicast.statistics_frame(report.model_copy(update={"statistics": found}))
    bias = frame[(frame.dimension == "clear") & (frame.part == "voices") & (frame.statistic == "bias")]
    assert bias.name.tolist() == ["strict", "kind", "panel"] and bias.value.dtype == "float64"
    assert bias.value.tolist() == [voice.bias.value for voice in found.dimensions[0].voices]
    assert frame[(frame.part == "voices.peoples_mean")].statistic.unique().tolist() == [
        "powered", "people_alone", "of_these_raters",
    ]  # fmt: skip
    unknown = frame[frame.reason.notna()]
    assert len(unknown) and unknown.value.isna().all()
    assert frame[frame.part == "groups.differences"].name.unique().tolist() == ["a - b"]
    assert frame[frame.part == "groups.differences"].p.notna().all()
    pytest.importorskip("polars")
    other = dicast.statistics_frame(report.model_copy(update={"statistics": found}), library="polars")
    assert other.columns == frame.columns.tolist() and other["value"].null_count() == len(unknown)
