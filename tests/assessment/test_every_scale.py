"""On every kind of scale, whatever was rated: each statistic has an interval or a reason, and no library warns."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from dicast.app.domain.dimension import Dimension
from dicast.app.domain.item import Rating
from dicast.app.domain.judge_statistics import JobStatistics
from dicast.app.domain.panel import PanelRule
from dicast.app.domain.report import ReportAgent, ReportDimension
from dicast.app.reports import files
from dicast.app.reports.folders import begin, job_folder
from dicast.app.reports.statistics import compute
from dicast.app.reports.stored_items import write_ratings
from dicast.app.reports.terminal import print_report
from dicast.app.reports.terminal_statistics import print_statistics
from tests.assessment.test_every_statistic import figures, held
from tests.reports.building import NOW, header, opinion

pytestmark = pytest.mark.filterwarnings("error")
ITEMS = 36
SCALES: dict[str, Any] = {
    "numbers": {"min": 1, "max": 5},
    "long": {"min": 0, "max": 100},
    "ordinal": {"labels": ["poor", "fair", "good"]},
    "nominal": {"labels": ["money", "law", "health"], "ordered": False},
    "pass_fail": "pass_fail",
    "checklist": {"checklist": ["Is it true?", "Is it short?", "Is it kind?"]},
    "preference": "preference",
    "strength": {"preference": "strength"},
}
SITUATIONS = ("good", "one rater", "nobody rated", "two items", "all equal")


def written(folder: Path, scale: str, situation: str, rng: np.random.Generator) -> Any:
    """A job of two judges and two rounds, whose pairs come from lists where it ranks them."""
    dimension = Dimension.model_validate({"id": "clear", "instructions": "?", "scale": SCALES[scale]})
    items = 2 if situation == "two items" else ITEMS
    low, high = dimension.scale.min, dimension.scale.max
    quality = rng.integers(low, high + 1, items)

    def said(noise: float) -> Any:
        if situation == "all equal":
            return np.full(items, high)
        return np.where(rng.random(items) < noise, rng.integers(low, high + 1, items), quality)

    begin(folder, "job-1", NOW)
    compared = dimension.scale.kind == "preference"
    rounds = {(judge, round): said(0.3) for judge in ("strict", "kind") for round in (0, 1)}
    opinions = [
        opinion(n, judge, int(scores[n]), replicate=round, swapped=bool(round) if compared else None, metadata={
            "system": "ab"[n % 2], "list": f"l{n // 3}", "candidate_a": "xyz"[n % 3], "candidate_b": "yzx"[n % 3],
            "text.chars": 10 + n,
        })
        for n in range(items)
        for (judge, round), scores in rounds.items()
    ]  # fmt: skip
    files.write_page(folder, "job-1", NOW, "0", 0, opinions, [])
    people = {"nobody rated": [], "one rater": ["ada"]}.get(situation, ["ada", "ben"])
    scores_of = {name: said(0.2) for name in people}
    ratings = [Rating(f"item-{n}", "clear", name, float(scores[n])) for name, scores in scores_of.items()
               for n in range(items)]  # fmt: skip
    write_ratings(folder, "job-1", NOW, ratings)
    given = {
        "agents": [ReportAgent(name=name, model="m", judge=name) for name in ("strict", "kind")],
        "dimensions": [
            ReportDimension.from_dimension(dimension, PanelRule(combine="majority" if scale == "nominal" else "mean"))
        ],
        "keep": ["system", "list", "candidate_a", "candidate_b", "text.chars"], "groups": ["system"],
        "probes": [] if compared else ["verbosity"], "orders": "both" if compared else None, "rated": bool(people),
    }  # fmt: skip
    return files.finish(folder, "job-1", NOW, header(len(opinions), **given))


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("scale", SCALES)
def test_each_estimate_has_an_interval_or_a_reason(tmp_path: Path, scale: str, situation: str) -> None:
    report = written(tmp_path, scale, situation, np.random.default_rng(1))
    found = compute(job_folder(tmp_path, "job-1"), report)
    held(found)
    assert JobStatistics.model_validate_json(found.model_dump_json()) == found
    known = sum(one.is_known for one in figures(found))
    assert (known > 15) if situation == "good" else (known < len(list(figures(found)))), known
    if situation == "two items" and scale not in ("preference", "strength"):  # a share of wins has bounds all the same
        assert known == 0, "two items are no sample"
    out = StringIO()
    kept = report.model_copy(update={"statistics": found})
    print_report(kept, Console(file=out, width=120))
    print_statistics(kept, Console(file=out, width=120), figures=True)
    assert "nan" not in out.getvalue().lower() and "None" not in out.getvalue()
