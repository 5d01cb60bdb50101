"""`dicast sample`, `compare` and `panel`: what is drawn, what is refused, and what a person reads."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from dicast.app.application import create_app
from dicast.app.datasets import DatasetError
from dicast.app.domain.item import Rating
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.report import Report, ReportAgent, ReportDimension
from dicast.app.reports import files
from dicast.app.reports.folders import begin, job_folder
from dicast.app.reports.statistics import RunsDiffer, compare_jobs, panel_fronts
from dicast.app.reports.stored_items import write_ratings
from dicast.app.submission.sampling import NoSample, SampleOptions, write_sample
from tests.reports.building import NOW, header, opinion

ROOT = Path(__file__).parents[1]
ITEMS = 60
DIMENSION = ReportDimension(id="clear", scale_min=1, scale_max=10, rubric="abc")
JUDGES = ("sharp", "dull", "chance")


def a_job(**more: Any) -> dict[str, Any]:
    return {
        "items": [
            {"id": f"i{n}", "text": f"=text {n}", "metadata": {"system": "ab"[n % 2]}, "prompt": "Why?"}
            for n in range(ITEMS)
        ],
        "agents": [{"name": "a"}],
        "dimensions": [
            {"id": name, "instructions": "?", "scale": {"min": 1, "max": 5}, "levels": {1: "bad"}}
            for name in ("clear", "true")
        ],
        **more,
    }  # fmt: skip


def finished(root: Path, job_id: str, *, moved: float = 0.0, seed: int = 1, **changes: Any) -> tuple[Path, Report]:
    """Judges who see the quality sharply, dully, or not at all; `moved` puts the sharp one's scores up."""
    begin(root, job_id, NOW)
    rng = np.random.default_rng(7)
    quality = rng.uniform(2, 9, ITEMS)
    people = np.clip(np.round(quality + rng.normal(0, 0.8, (2, ITEMS))), 1, 10)
    rng = np.random.default_rng(seed)
    seen = {
        "sharp": quality + rng.normal(moved, 0.8, ITEMS), "dull": quality + rng.normal(0, 2.5, ITEMS),
        "chance": rng.uniform(1, 10, ITEMS),
    }  # fmt: skip
    opinions = [
        opinion(n, judge, int(np.clip(np.round(seen[judge][n]), 1, 10)), argument=f"{judge} on {n} in {job_id}")
        for n in range(ITEMS)
        for judge in JUDGES
    ]
    files.write_page(root, job_id, NOW, "0", 0, opinions, [])
    ratings = [
        Rating(f"item-{n}", "clear", who, float(people[at, n]))
        for at, who in enumerate(("ada", "ben"))
        for n in range(ITEMS)
    ]
    write_ratings(root, job_id, NOW, ratings)
    given = {"agents": [ReportAgent(name=name, model="m") for name in JUDGES], "dimensions": [DIMENSION], "rated": True}
    report = files.finish(root, job_id, NOW, header(3 * ITEMS, job_id=job_id, **{**given, **changes}))
    return job_folder(root, job_id), report


def dicast(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "DICAST_RESULTS_DIR": str(folder), "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, "-m", "dicast", *arguments], cwd=folder, env=environ, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip


# ---------------------------------------------------------------------- sample
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_sample_that_is_filled_in_is_what_ratings_reads(tmp_path: Path, environ: Any, ending: str) -> None:
    out = tmp_path / f"people.{ending}"
    job = EvaluationJob.model_validate(a_job())
    assert write_sample(job, SampleOptions(20, raters=("ada", "ben")), out) == ITEMS
    app = create_app(environ)
    try:
        with pytest.raises(DatasetError, match="holds no ratings"):
            app.prepared(a_job(ratings=str(out)))
        _fill(out, {"clear": 3, "true": ""})
        counts = app.prepared(a_job(ratings=str(out))).ratings
    finally:
        app.close()
    assert counts is not None
    assert (counts.ratings, counts.items, counts.raters) == (40, 20, ("ada", "ben"))


def _fill(path: Path, scores: dict[str, Any]) -> None:
    if path.suffix == ".jsonl":
        rows = [{**orjson.loads(line), **{k: v or None for k, v in scores.items()}} for line in path.open("rb")]
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
        return
    with path.open(newline="") as file:
        filled = [{**row, **scores} for row in csv.DictReader(file)]
    assert all(row["text"].startswith("'=text") for row in filled), "no text is a formula"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(filled[0]))
        writer.writeheader()
        writer.writerows(filled)


def test_a_sample_of_lists_asks_for_their_orders(tmp_path: Path, environ: Any) -> None:
    lists = [{"id": f"q{n}", "candidates": [{"id": c, "text": f"So says {c}."} for c in "ab"]} for n in range(3)]
    dimensions = [{"id": "clear", "instructions": "?", "scale": "preference"}]
    ranked = a_job(items=lists, dimensions=dimensions, pairs="all")
    out = tmp_path / "people.jsonl"
    write_sample(EvaluationJob.model_validate(ranked), SampleOptions(2), out)
    assert {orjson.loads(line)["text"] for line in out.open("rb")} == {"[a] So says a.\n\n[b] So says b."}
    _fill(out, {"clear": "b > a"})
    app = create_app(environ)
    try:
        counts = app.prepared({**ranked, "ratings": str(out)}).ratings
    finally:
        app.close()
    assert counts is not None
    assert (counts.ratings, counts.items) == (2, 2)


def test_samples_are_drawn_as_asked(tmp_path: Path) -> None:
    job = EvaluationJob.model_validate(a_job())
    for name, wishes in {
        "even": SampleOptions(20),
        "again": SampleOptions(20),
        "other": SampleOptions(20, seed=2),
    }.items():
        write_sample(job, wishes, tmp_path / f"{name}.jsonl")
    even, again, other = (_rows(tmp_path / f"{name}.jsonl") for name in ("even", "again", "other"))
    assert even == again != other
    assert "probability" not in even[0] and even[0]["rater"] == "person" and even[0]["clear"] is None
    assert len({row["item_id"] for row in even}) == 20
    write_sample(job, SampleOptions(10, strata="system"), tmp_path / "strata.jsonl")
    drawn = _rows(tmp_path / "strata.jsonl")
    assert [int(row["item_id"][1:]) % 2 for row in drawn].count(0) == 5
    assert [row["probability"] for row in drawn] == pytest.approx([1 / 6] * 10)


def test_where_judges_disagree_is_drawn_more_often(tmp_path: Path) -> None:
    folder, report = finished(tmp_path, "run")
    items = [{"id": f"item-{n}", "text": "t"} for n in range(ITEMS)] + [{"id": "new", "text": "t"}]
    job = EvaluationJob.model_validate(a_job(items=items))
    write_sample(job, SampleOptions(ITEMS + 1, disagreed=(folder, report)), tmp_path / "all.jsonl")
    assert {row["probability"] for row in _rows(tmp_path / "all.jsonl")} == {1.0}
    write_sample(job, SampleOptions(20, disagreed=(folder, report)), tmp_path / "some.jsonl")
    drawn = _rows(tmp_path / "some.jsonl")
    assert len(drawn) == 20 and len({row["probability"] for row in drawn}) > 5
    alone = report.model_copy(update={"agents": report.agents[:1]})
    with pytest.raises(NoSample, match="has one judge"):
        write_sample(job, SampleOptions(20, disagreed=(folder, alone)), tmp_path / "none.jsonl")
    with pytest.raises(NoSample, match="no item of this one"):
        strangers = EvaluationJob.model_validate(a_job())
        write_sample(strangers, SampleOptions(20, disagreed=(folder, report)), tmp_path / "none.jsonl")


def test_neymans_allocation_carries_probabilities_and_minds_the_cost(tmp_path: Path) -> None:
    folder, report = finished(tmp_path, "run")
    items = [{"id": f"item-{n}", "text": "t", "metadata": {"minutes": 1 + 8 * (n % 2)}} for n in range(ITEMS)]
    job = EvaluationJob.model_validate(a_job(items=items))
    chances = {}
    for name, cost in (("plain", None), ("dear", "minutes")):
        write_sample(job, SampleOptions(20, pilot=(folder, report), cost=cost), tmp_path / f"{name}.jsonl")
        chances[name] = {row["item_id"]: row["probability"] for row in _rows(tmp_path / f"{name}.jsonl")}
        assert len(chances[name]) == 20 and len(set(chances[name].values())) > 5
    cheap = sum(int(item.split("-")[1]) % 2 == 0 for item in chances["dear"])
    assert cheap > 12, "an item that costs nine times as much is a third as likely"
    with pytest.raises(NoSample, match="no number above 0 as its 'hours'"):
        write_sample(job, SampleOptions(20, pilot=(folder, report), cost="hours"), tmp_path / "none.jsonl")


def test_the_command_plans_ratings(tmp_path: Path) -> None:
    finished(tmp_path, "run")
    (tmp_path / "job.json").write_text(json.dumps(a_job()))
    ended = dicast(tmp_path, "sample", "job.json", "--pilot", "run", "--width", "3")
    assert ended.returncode == 0, ended.stderr
    assert "by --neyman" in ended.stdout and "it is known" in ended.stdout
    plans = json.loads(dicast(tmp_path, "sample", "job.json", "--pilot", "run", "--width", "0.01", "--json").stdout)
    prices = plans[0]["prices"]
    assert [price["ratings"] for price in prices] == [25, 50]
    assert all(price["neyman"] <= price["even"] for price in prices) and prices[0]["even"] > prices[1]["even"]
    assert plans[0]["enough"] is None and plans[0]["now"]["method"] == "PPI++, anytime"
    refused = dicast(tmp_path, "sample", "job.json", "-n", "20")
    assert refused.returncode == 2 and "--size and --to" in refused.stderr


def test_the_command_learns_when_judges_may_decide(tmp_path: Path) -> None:
    finished(tmp_path, "run")
    ended = dicast(tmp_path, "panel", "run", "--agree", "0.1", "--within", "2", "--json")
    assert ended.returncode == 0, ended.stderr
    panel = json.loads(ended.stdout)[0]
    assert panel["by"] == "difference" and panel["bound"] > 0 and 0 < panel["coverage"] <= 1
    shown = dicast(tmp_path, "panel", "run", "--agree", "0.1", "--within", "2").stdout
    assert "escalate: {difference:" in shown and "agree: 0.1, confidence: 0.9" in shown
    hopeless = dicast(tmp_path, "panel", "run", "--agree", "0.999", "--within", "0").stdout
    assert "Nobody is shown to be fit to decide" in hopeless


def _rows(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.open("rb")]


@pytest.mark.parametrize(
    ("changes", "wishes", "name", "message"),
    [
        ({}, SampleOptions(61), "x.csv", "a sample of 60 items has 1 to 60 of them, not 61"),
        ({}, SampleOptions(5), "x.txt", "must end in .csv or .jsonl"),
        ({}, SampleOptions(5), "there.csv", "is there already, and may hold ratings"),
        ({}, SampleOptions(5, strata="lang"), "x.csv", "no item has 'lang' in its metadata; there are system"),
        ({}, SampleOptions(5, strata="sytem"), "x.csv", "no item has 'sytem' in its metadata; did you mean 'system'?"),
        (
            {"dimensions": [{"id": "text", "instructions": "?"}]},
            SampleOptions(5),
            "x.csv",
            "a dimension is called 'text'",
        ),
        ({"items": [{"id": "=1", "text": "t"}]}, SampleOptions(1), "x.csv", "would run the id '=1' as a formula"),
    ],
)
def test_samples_that_cannot_be(tmp_path: Path, changes: Any, wishes: SampleOptions, name: str, message: str) -> None:
    (tmp_path / "there.csv").write_text("precious")
    with pytest.raises(NoSample) as caught:
        write_sample(EvaluationJob.model_validate(a_job(**changes)), wishes, tmp_path / name)
    assert message in str(caught.value)
    assert (tmp_path / "there.csv").read_text() == "precious"


def test_the_command_draws_from_a_job_file(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps(a_job(ratings="people.csv")))
    said = dicast(tmp_path, "sample", "job.json", "-n", "7", "--to", "people.csv", "--rater", "ada")
    assert said.returncode == 0, said.stderr
    assert "7 of 60 items in people.csv" in said.stderr
    assert "clear  a whole number from 1 to 5  clear (1: bad)" in said.stderr
    assert len((tmp_path / "people.csv").read_text().splitlines()) == 8
    again = dicast(tmp_path, "sample", "job.json", "-n", "7", "--to", "people.csv")
    assert again.returncode == 2 and "is there already" in again.stderr


# ---------------------------------------------------------------------- compare
def test_a_shift_is_found_and_chance_is_not(tmp_path: Path) -> None:
    first, second = finished(tmp_path, "before"), finished(tmp_path, "after", moved=1.0, seed=2)
    found = compare_jobs(first, second, most=3)
    by_judge = {shift.judge: shift for shift in found.shifts}
    sharp = by_judge["sharp"]
    assert sharp.shift.low is not None and 0.4 < sharp.shift.low < 1.0 < sharp.shift.high  # type: ignore[operator]
    assert sharp.p is not None and sharp.p < 0.001
    assert by_judge["dull"].p > 0.05 and by_judge["chance"].p > 0.05  # type: ignore[operator]
    assert len(found.moved) == 3
    for item in found.moved:
        number = item.item_id.removeprefix("item-")
        assert item.first_argument == f"{item.judge} on {number} in before"
        assert item.second_argument == f"{item.judge} on {number} in after"
    same = compare_jobs(first, first)
    assert same.moved == []
    for shift in same.shifts:
        assert shift.p == 1 and shift.shift.low < 0 == shift.shift.value < shift.shift.high


def test_other_rubrics_and_scales_are_refused_unless_told(tmp_path: Path) -> None:
    first = finished(tmp_path, "one")
    for name, changes, message in [
        ("two", {"rubric": "other"}, "clear: another rubric"),
        ("three", {"scale_max": 20}, "clear: another scale"),
    ]:
        other = finished(tmp_path, name, seed=2, dimensions=[DIMENSION.model_copy(update=changes)])
        with pytest.raises(RunsDiffer, match=message):
            compare_jobs(first, other)
        assert compare_jobs(first, other, force=True).forced == [message]
    folder, report = first
    foreign = report.model_copy(update={"dimensions": [DIMENSION.model_copy(update={"id": "else"})]})
    with pytest.raises(RunsDiffer, match="no dimension in common"):
        compare_jobs(first, (folder, foreign), force=True)


def test_labels_without_an_order_have_no_mean_to_shift(tmp_path: Path) -> None:
    topic = DIMENSION.model_copy(update={"kind": "labels", "labels": [str(n) for n in range(1, 11)], "ordered": False})
    first, second = (finished(tmp_path, name, dimensions=[topic]) for name in ("one", "two"))
    with pytest.raises(RunsDiffer, match="only labels without an order in common"):
        compare_jobs(first, second)


def test_the_commands_show_what_was_found(tmp_path: Path) -> None:
    finished(tmp_path, "before")
    finished(tmp_path, "after", moved=1.0, seed=2)
    said = dicast(tmp_path, "compare", "before", "after", "--most", "2")
    assert said.returncode == 0, said.stderr
    for text in ("From before to after", "sharp", "< 0.001", "What moved most", "in after"):
        assert text in said.stdout
    said = dicast(tmp_path, "panel", "before", "--reach", "0.7", "--json")
    assert json.loads(said.stdout)[0]["enough"]["judges"] == ["sharp"]
    for arguments, message in [
        (("panel", "before", "--dimension", "x"), "--dimension: 'x' is none of the job's; there are clear"),
        (("panel", "before", "--cost", "sharp=1"), "what dull costs is not given"),
        (("panel", "before", "--cost", "sharp=cheap"), "sharp must cost a number >= 0 an item, got 'cheap'"),
        (("panel", "before", "--cost", "shrap=1"), "--cost: 'shrap' is no judge of the job; did you mean 'sharp'?"),
        (
            ("panel", "before", "--dimension", "claer"),
            "--dimension: 'claer' is none of the job's; did you mean 'clear'?",
        ),
        (("compare", "before", "nothing"), "no finished job 'nothing'"),
    ]:
        said = dicast(tmp_path, *arguments)
        assert said.returncode == 2 and message in said.stderr, said.stderr


# ---------------------------------------------------------------------- panel
def test_the_cheapest_panel_that_is_good_enough(tmp_path: Path) -> None:
    folder, report = finished(tmp_path, "run")

    def fronts(costs: list[float], reach: float) -> Any:
        (front,) = panel_fronts(folder, report, costs, dimensions=["clear"], largest=2, measure="pearson", reach=reach)
        return front

    cheap = fronts([10.0, 1.0, 0.5], reach=0.4)
    assert cheap.enough is not None and cheap.enough.judges == ["dull"] and cheap.items == ITEMS
    dear = fronts([10.0, 1.0, 0.5], reach=0.8)
    assert dear.enough is not None and "sharp" in dear.enough.judges
    assert [option.cost for option in dear.front] == sorted(option.cost for option in dear.front)
    assert dear.person.is_known
    none = fronts([1.0, 1.0, 1.0], reach=0.999)
    assert none.enough is None and none.reason == "that a panel reaches an agreement of 0.999 with people is not proved"


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_front_is_drawn(tmp_path: Path, ending: str) -> None:
    finished(tmp_path, "run")
    picture = tmp_path / f"panels.{ending}"
    said = dicast(tmp_path, "panel", "run", "--cost", "sharp=3", "--cost", "dull=1", "--cost", "chance=1", "--plot",
                  str(picture))  # fmt: skip
    assert said.returncode == 0, said.stderr
    if ending == "png":
        assert picture.read_bytes().startswith(b"\x89PNG")
        return
    drawn = xml.etree.ElementTree.parse(picture).getroot()
    comments = [line.strip() for line in picture.read_text().splitlines() if line.strip().startswith("<!--")]
    assert drawn.tag.endswith("svg") and "<!-- clear -->" in comments
    assert "<!-- cost of an item (as given) -->" in comments and "<!-- dull -->" in comments


def test_a_picture_that_cannot_be(tmp_path: Path) -> None:
    folder = finished(tmp_path, "run")[0]
    said = dicast(tmp_path, "panel", "run", "--plot", "panels.gif")
    assert said.returncode == 2 and "--plot: the file must end in .svg, .png, got 'panels.gif'" in said.stderr
    (folder / "ratings.jsonl").unlink()
    said = dicast(tmp_path, "panel", "run", "--plot", "panels.svg")
    assert said.returncode == 2 and "there is no panel to show, because a search needs 20 items" in said.stderr


def test_a_panel_needs_ratings(tmp_path: Path) -> None:
    folder, report = finished(tmp_path, "run")
    (folder / "ratings.jsonl").unlink()
    (front,) = panel_fronts(folder, report, [1, 1, 1], dimensions=["clear"], largest=2, measure="pearson", reach=None)
    assert front.front == [] and front.reason == "a search needs 20 items with all scores or more, and there are 0"
    assert not front.person.is_known
