"""Calibrations: learned from a rated job, bound to what they were made for, and applied beside the raw scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from dicast.app.application import create_app
from dicast.app.domain.calibrated import mismatches, scoring_context
from dicast.app.domain.calibration import Calibration, CalibrationMap, MadeFor
from dicast.app.domain.dimension import Dimension
from dicast.app.domain.fingerprints import judge_digest, prompt_digest
from dicast.app.domain.item import Rating
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.panel import Agent
from dicast.app.domain.refusals import InvalidJob, JobRefused
from dicast.app.domain.report import Report, ReportAgent, ReportDimension
from dicast.app.reports import files
from dicast.app.reports.finishing import keep_computed
from dicast.app.reports.folders import begin, job_folder
from dicast.app.reports.panel import export_panel
from dicast.app.reports.statistics import NoFingerprints, calibrate
from dicast.app.reports.stored_items import write_ratings
from dicast.app.submission.job_file import load_calibration, load_job
from dicast.app.submission.libraries import CalibrationError
from dicast.app.submission.submit import check_job
from tests.reports.building import NOW, header, opinion
from tests.test_judging_commands import dicast as command

ITEMS = 60
DIMENSION = Dimension.model_validate({"id": "clear", "instructions": "Is it clear?", "scale": {"min": 1, "max": 10}})
AGENTS = [Agent(name="strict", persona="You are strict."), Agent(name="kind")]


def a_job(**changes: Any) -> dict[str, Any]:
    return {
        "items": [{"id": "i", "text": "t"}],
        "agents": [agent.model_dump(exclude_defaults=True) for agent in AGENTS],
        "dimensions": [DIMENSION.model_dump(exclude_defaults=True)],
        **changes,
    }


def finished(root: Path, job_id: str = "job-1", *, rated: bool = True, **changes: Any) -> tuple[Path, Report]:
    """The kind judge is three points above people, the strict one squeezes the scale."""
    begin(root, job_id, NOW)
    rng = np.random.default_rng(1)
    people = rng.integers(1, 8, ITEMS)
    seen = {"strict": np.round(4 + people / 4 + rng.normal(0, 0.3, ITEMS)), "kind": people + rng.integers(2, 4, ITEMS)}
    opinions = [opinion(n, judge, int(scores[n])) for n in range(ITEMS) for judge, scores in seen.items()]
    files.write_page(root, job_id, NOW, "0", 0, opinions, [])
    if rated:
        ratings = [Rating(f"item-{n}", "clear", "ada", float(people[n])) for n in range(ITEMS)]
        write_ratings(root, job_id, NOW, ratings)
    given = {
        "agents": [ReportAgent.from_agent(agent, ["m"]) for agent in AGENTS],
        "dimensions": [ReportDimension.from_dimension(DIMENSION)],
        "prompt": prompt_digest(EvaluationJob.model_validate(a_job())),
        "rated": rated,
        **changes,
    }
    return job_folder(root, job_id), files.finish(root, job_id, NOW, header(2 * ITEMS, job_id=job_id, **given))


def learned(root: Path) -> Calibration:
    maps, missing = calibrate(*finished(root, "learned"), "isotonic", ["clear"])
    assert missing == []
    return Calibration(job="learned", maps=maps)


def test_a_map_for_each_judge_and_the_panel_with_what_it_is_worth(tmp_path: Path) -> None:
    found = learned(tmp_path)
    strict, kind, panel = found.maps
    assert [(one.judge, one.kind, one.items) for one in found.maps] == [
        ("strict", "judge", ITEMS), ("kind", "judge", ITEMS), ("panel", "panel", ITEMS)
    ]  # fmt: skip
    assert kind.error is not None and kind.calibrated_error is not None and kind.error > 2 > 0.7 > kind.calibrated_error
    for one in found.maps:
        assert one.gain.low is not None and one.gain.low > 0 and one.made_for.rubric == DIMENSION.rubric
    places = [0, *kind.x, (kind.x[0] + kind.x[1]) / 2, 99]
    assert [kind.apply(score) for score in places] == [kind.y[0], *kind.y, (kind.y[0] + kind.y[1]) / 2, kind.y[-1]]
    assert panel.judges == ["strict", "kind"] and strict.made_for.judge != kind.made_for.judge
    assert Calibration.model_validate_json(found.model_dump_json()) == found


def test_a_later_job_has_calibrated_scores_beside_its_raw_ones(tmp_path: Path) -> None:
    folder, report = finished(tmp_path, rated=False, calibration=learned(tmp_path), panelled=True)
    kept = keep_computed(folder, report)
    assert kept.statistics is not None and kept.statistics.state == "computed"
    (of,) = kept.statistics.dimensions
    panel = kept.calibration.find_panel("clear")  # type: ignore[union-attr]
    assert panel is not None
    rows = pq.read_table(folder / "panel.parquet").to_pylist()
    assert len(rows) == ITEMS and all(row["calibrated"] == pytest.approx(panel.apply(row["score"])) for row in rows)
    raw, mended = (np.mean([row[name] for row in rows]) for name in ("score", "calibrated"))
    whole = of.calibrated[-1]
    assert whole.raw.value == pytest.approx(raw) and whole.calibrated.value == pytest.approx(mended) and mended < raw
    assert whole.bias.reason == "nobody has rated this dimension" and whole.learned_on == ITEMS
    assert any(line.startswith("Calibrated (isotonic, learned on 60 rated items), the panel's mean is") for line in
               of.summary)  # fmt: skip
    export_panel(folder, kept, "csv", tmp_path / "panel.csv")
    assert (tmp_path / "panel.csv").read_text().splitlines()[0] == (
        '"item_id","criterion_id","score","opinions","label","calibrated"'
    )


@pytest.mark.parametrize(
    ("changes", "differing"),
    [
        ({"agents": [ReportAgent.from_agent(AGENTS[0], ["other"]), ReportAgent.from_agent(AGENTS[1], ["m"])]}, "model"),
        ({"prompt": "another"}, "prompt"),
        (
            {"dimensions": [ReportDimension.from_dimension(DIMENSION.model_copy(update={"instructions": "?"}))]},
            "rubric",
        ),
        (
            {"agents": [ReportAgent.from_agent(a.model_copy(update={"persona": "Be kind."}), ["m"]) for a in AGENTS]},
            "judge",
        ),
    ],
)
def test_what_was_made_for_something_else_is_withheld_or_told(
    tmp_path: Path, changes: dict[str, Any], differing: str
) -> None:
    made = learned(tmp_path)
    for choice in ("refuse", "warn"):
        calibration = made.model_copy(update={"on_mismatch": choice})
        folder, report = finished(tmp_path, choice, calibration=calibration, panelled=True, **changes)
        lines = mismatches(calibration, scoring_context(report))
        assert any(line == f"strict, clear: it was made with another {differing}" for line in lines)
        kept = keep_computed(folder, report)
        assert kept.statistics is not None
        (of,) = kept.statistics.dimensions
        strict, whole = of.calibrated[0], of.calibrated[-1]
        assert strict.differing == [differing]
        rows = pq.read_table(folder / "panel.parquet").to_pylist()
        if choice == "refuse":
            assert strict.calibrated.reason == f"the map was made with another {differing}"
            assert {row["calibrated"] for row in rows} == {None} and not whole.calibrated.is_known
        else:
            assert strict.calibrated.is_known and None not in {row["calibrated"] for row in rows}
            assert any("is applied all the same" in line for line in of.summary)


def test_a_panel_of_other_judges_has_no_calibrated_score(tmp_path: Path) -> None:
    maps = learned(tmp_path).maps
    three = [*maps[:2], maps[2].model_copy(update={"judges": ["strict", "kind", "third"]})]
    folder, report = finished(tmp_path, calibration=Calibration(maps=three), panelled=True)
    kept = keep_computed(folder, report)
    assert kept.statistics is not None
    strict, _, whole = kept.statistics.dimensions[0].calibrated
    assert strict.calibrated.is_known
    assert whole.calibrated.reason == "the calibration's panel has other judges (strict, kind, third)"


def test_what_cannot_be_learned(tmp_path: Path) -> None:
    folder, report = finished(tmp_path, rated=False)
    maps, missing = calibrate(folder, report, "linear", ["clear"])
    assert maps == [] and {one.reason for one in missing} == {"nobody has rated this dimension"}
    with pytest.raises(NoFingerprints, match="is an earlier version's and does not say how its judges were asked"):
        calibrate(folder, report.model_copy(update={"prompt": ""}), "linear", ["clear"])


# ---------------------------------------------------------------------- in a job
@pytest.fixture
def app(environ: Any) -> Any:
    Path(environ["DICAST_POOLS_FILE"]).write_text('default = "sim"\n[pools.sim]\nprovider = "simulated"\nmodel = "m"\n')
    app = create_app(environ)
    yield app
    app.close()


def test_a_job_is_refused_or_warned_where_a_part_differs(app: Any, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(learned(tmp_path).model_dump_json(exclude={"on_mismatch"}))
    assert app.prepared(a_job(calibration=str(path))).warnings == []
    changed = [{"name": "strict", "persona": "Be brief.", "model": "n"}, {"name": "kind"}]
    with pytest.raises(JobRefused) as caught:
        app.prepared(a_job(calibration=str(path), agents=changed))
    assert "calibration: strict, clear: it was made with another judge and another model;" in str(caught.value)
    warned = app.prepared(a_job(calibration={"file": str(path), "on_mismatch": "warn"}, agents=changed)).warnings
    assert warned[0] == "calibration: strict, clear: it was made with another judge and another model"
    with pytest.raises(JobRefused, match="it has no map for any judge and dimension of this job"):
        app.prepared(a_job(calibration=str(path), agents=[{"name": "third"}]))
    job = EvaluationJob.model_validate(a_job(calibration=load_calibration(str(path), "warn")))
    assert job.panelled and job.calibration is not None and job.calibration.on_mismatch == "warn"


def test_files_that_hold_none(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps(a_job(calibration="calibration.json")))
    with pytest.raises(CalibrationError, match=r"there is no file .*calibration\.json"):
        load_job(str(tmp_path / "job.json"))
    (tmp_path / "calibration.json").write_text('{"version": 1, "maps": []}')
    with pytest.raises(CalibrationError, match="is none that `dicast calibrate` made: maps: needs at least one"):
        load_job(str(tmp_path / "job.json"))
    with pytest.raises(
        InvalidJob, match=r"calibration: must be a mapping, got 3; write calibration: calibration\.json"
    ):
        check_job(a_job(calibration=3))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [([1.0, 1.0], [1.0, 2.0], "x must ascend"), ([1.0], [1.0, 2.0], "x and y must have as many points, got 1 and 2")],
)
def test_maps_that_cannot_be(x: list[float], y: list[float], message: str) -> None:
    bound = MadeFor(judge="j", model="m", prompt="p", rubric="r")
    with pytest.raises(ValidationError, match=message):
        CalibrationMap(judge="j", dimension="d", method="linear", made_for=bound, x=x, y=y, items=10)
    one = CalibrationMap(judge="j", dimension="d", method="linear", made_for=bound, x=[1.0], y=[2.0], items=10)
    with pytest.raises(ValidationError, match="maps: 'j' has two in dimension 'd'"):
        Calibration(maps=[one, one])


def test_digests_follow_what_they_stand_for() -> None:
    one = AGENTS[0]
    others = [one.model_copy(update=change) for change in ({"persona": ""}, {"name": "x"}, {"temperature": 0.5})]
    assert len({judge_digest(agent) for agent in (one, *others)}) == 4
    assert judge_digest(one.model_copy(update={"model": "n", "max_tokens": 9})) == judge_digest(one)
    job = EvaluationJob.model_validate(a_job())
    other = a_job(agents=[{"name": "x", "persona": "Be brief."}], dimensions=[{"id": "d", "instructions": "?"}])
    assert prompt_digest(job) == prompt_digest(EvaluationJob.model_validate(other)), "persona and rubric have their own"


def test_the_command_writes_the_file(tmp_path: Path) -> None:
    finished(tmp_path, "learned")
    said = command(tmp_path, "calibrate", "learned", "-o", "c.json", "--method", "linear")
    assert said.returncode == 0, said.stderr
    for text in ("squared error falls by", "kind", "panel"):
        assert text in said.stdout
    assert load_calibration(str(tmp_path / "c.json")).maps[1].method == "linear"
    for arguments, message in [
        (("learned", "-o", "c.json", "--dimension", "x"), "--dimension: 'x' is none of the job's; there are clear"),
        (("nothing", "-o", "c.json"), "no finished job 'nothing'"),
    ]:
        said = command(tmp_path, "calibrate", *arguments)
        assert said.returncode == 2 and message in said.stderr, said.stderr
