"""Results over HTTP: pages, whole files, and never a file of anybody else's."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path

import httpx2
import orjson
import pyarrow.parquet
import pytest

from dicast.app.application import Dicast
from dicast.app.domain.dimension import Dimension
from dicast.app.domain.opinion import ErrorKind, EvaluationError, Opinion
from dicast.app.domain.panel import Agent
from dicast.app.domain.report import Report, ReportAgent, ReportDimension, ReportHeader
from dicast.app.reports.files import finish, write_page
from dicast.app.reports.folders import job_folder
from tests.server.serving import JOB, problem

AGENT, DIMENSION = Agent(name="a"), Dimension(id="d", instructions="?")
START = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
HOSTILE = "<script>alert(1)</script> \u202e \u0000 \ud83d\ude00"


def finished(
    dicast: Dicast, name: str, items: int, *, failed: int = 0, varied: int = 0, in_store: bool = True
) -> Report:
    """A job that has ended, with its files, and in the store if it is still known there."""
    root = dicast.settings.results_dir
    texts = [f"{HOSTILE} {n}" for n in range(items)]
    opinions = [
        Opinion(judge="a", criterion_id="d", item_id=f"i{n}", replicate=0, score=None if n < failed else 5,
                argument=text, model="m")
        for n, text in enumerate(texts)
    ]  # fmt: skip
    errors = [
        EvaluationError(judge="a", criterion_id="d", item_id=f"i{n}", replicate=0, kind=ErrorKind.LOST, message="gone")
        for n in range(failed)
    ]
    if varied:  # the last ones are on variants, and one more error is
        opinions[-varied:] = [said.model_copy(update={"probe": "formatting:plain"}) for said in opinions[-varied:]]
        errors.append(errors[-1].model_copy(update={"probe": "formatting:plain"}))
    write_page(root, name, "abc", "0", 0, opinions, errors)
    header = ReportHeader(
        job_id=name, project="p", status="completed", units=items, started=START, finished=START, wall_s=1.0,
        agents=[ReportAgent.from_agent(AGENT)], dimensions=[ReportDimension.from_dimension(DIMENSION)],
    )  # fmt: skip
    report = finish(root, name, "abc", header)
    if in_store:
        dicast.submit({**JOB, "id": name})
        fields = {"state": "completed", "report": report.model_dump_json(), "incarnation": "abc",
                  "finished_ms": str(round(1000 * START.timestamp()))}  # fmt: skip
        dicast.store.hset(dicast.keys.at("job", name), mapping=fields)
    return report


def test_variants_come_only_where_they_are_asked_for(http: httpx2.Client, dicast: Dicast) -> None:
    report = finished(dicast, "v", 10, failed=1, varied=4)
    assert report.probed
    for name, own, all in (("opinions", 6, 10), ("errors", 1, 2)):
        for more, count in (({}, own), ({"probes": "true"}, all)):
            page = http.get(f"/jobs/v/{name}", params=more).json()
            lines = http.get(f"/jobs/v/{name}", params={"format": "jsonl", **more})
            assert lines.headers["content-disposition"] == f'attachment; filename="{name}.jsonl"'
            assert page[name] == [json.loads(line) for line in lines.text.split("\n") if line]
            assert len(page[name]) == count and page["next"] is None
            assert bool(more) == any(entry.get("probe") for entry in page[name])


def test_opinions_come_in_pages_and_whole(http: httpx2.Client, dicast: Dicast) -> None:
    report = finished(dicast, "r", 25, failed=3)
    lines = [json.loads(line) for line in Path(report.files.opinions_jsonl).read_text().splitlines()]
    seen, cursor = [], None
    while True:
        page = http.get("/jobs/r/opinions", params={"limit": 10, **({"cursor": cursor} if cursor else {})}).json()
        seen.append(page["opinions"])
        if (cursor := page["next"]) is None:
            break
    assert [len(part) for part in seen] == [10, 10, 5] and list(chain(*seen)) == lines
    for ask in ({"params": {"format": "jsonl"}}, {"headers": {"Accept": "application/x-ndjson"}}):
        whole = http.get("/jobs/r/opinions", **ask)
        assert whole.headers["content-type"] == "application/x-ndjson"
        assert whole.content == Path(report.files.opinions_jsonl).read_bytes()
    for ask in ({"params": {"format": "parquet"}}, {"headers": {"Accept": "application/vnd.apache.parquet;q=1"}}):
        table = pyarrow.parquet.read_table(io.BytesIO(http.get("/jobs/r/opinions", **ask).content))
        assert table.column("item_id").to_pylist() == [line["item_id"] for line in lines]
    part = http.get("/jobs/r/opinions?format=parquet", headers={"Range": "bytes=0-3"})
    assert (part.status_code, part.content) == (206, b"PAR1")
    errors = http.get("/jobs/r/errors").json()
    assert [error["kind"] for error in errors["errors"]] == ["lost"] * 3 and errors["next"] is None
    assert len(http.get("/jobs/r/errors?format=jsonl").text.splitlines()) == 3
    problem(http.get("/jobs/r/opinions", headers={"Accept": "image/png"}), 406, "not-acceptable")
    told = Report.model_validate(http.get("/jobs/r/report").json())
    assert told.model_copy(update={"files": report.files}) == report
    for link in (told.files.report, told.files.opinions_jsonl, told.files.opinions_parquet, told.files.errors_jsonl):
        assert http.get(link).status_code == 200
    assert str(dicast.settings.results_dir) not in http.get("/jobs/r/report").text


def test_a_job_that_the_store_has_forgotten_is_found_by_its_files(http: httpx2.Client, dicast: Dicast) -> None:
    finished(dicast, "old", 2, in_store=False)
    assert http.get("/jobs/old").json()["state"] == "completed"
    assert len(http.get("/jobs/old/opinions").json()["opinions"]) == 2
    bound = dicast.tokens.issue("bound", ["job:read"], ttl_s=60, pools=["sim"])
    problem(http.get("/jobs/old", headers={"Authorization": f"Bearer {bound}"}), 404, "unknown-job")


def test_a_forgotten_jobs_units_without_a_call_count_as_done(http: httpx2.Client, dicast: Dicast) -> None:
    report = finished(dicast, "old", 5, failed=1, in_store=False)
    report = report.model_copy(update={"units": 8, "scored": 4, "failed": 1, "spared": 3})
    (job_folder(dicast.settings.results_dir, "old") / "report.json").write_text(report.model_dump_json())
    seen = http.get("/jobs/old").json()
    assert (seen["done"], seen["units"], seen["counters"]["spared"]) == (8, 8, 3)


@pytest.mark.parametrize(
    "cursor", ["1", "x.1", "{run}.1", "{run}.-5", "{run}.999999999", "{run}.0", "{run}.", "\u0661"]
)
def test_a_cursor_of_elsewhere_is_refused(http: httpx2.Client, dicast: Dicast, cursor: str) -> None:
    finished(dicast, "r", 3)
    run = http.get("/jobs/r/opinions?limit=1").json()["next"].partition(".")[0]
    told = http.get("/jobs/r/opinions", params={"cursor": cursor.format(run=run)})
    problem(told, 422, "request-refused")


def test_the_files_of_an_earlier_run_are_not_this_ones(http: httpx2.Client, dicast: Dicast) -> None:
    """As where the results are on another machine, and an older job of the id was judged here."""
    report = finished(dicast, "r", 2)
    later = report.model_copy(update={"finished": START + timedelta(milliseconds=1)})
    dicast.store.hset(dicast.keys.at("job", "r"), "report", later.model_dump_json())
    for path in ("report", "opinions", "errors"):
        problem(http.get(f"/jobs/r/{path}"), 503, "results-away")


def test_no_file_of_elsewhere_is_served(http: httpx2.Client, dicast: Dicast, tmp_path: Path) -> None:
    """Whatever a report names, and whatever was put into a job's folder."""
    report = finished(dicast, "r", 2)
    (tmp_path / "secret").write_text('{"secret": 1}\n')
    folder = Path(report.files.directory)
    file = Path(report.files.opinions_jsonl)
    file.unlink()
    problem(http.get("/jobs/r/opinions"), 503, "results-away")
    file.symlink_to(tmp_path / "secret")
    problem(http.get("/jobs/r/opinions"), 503, "results-away")
    for format in ("jsonl", "json"):
        problem(http.get(f"/jobs/r/opinions?format={format}"), 503, "results-away")
    named = report.files.model_copy(update={"opinions_jsonl": str(tmp_path / "secret"), "errors_jsonl": "../../secret"})
    (folder / "report.json").write_bytes(
        orjson.dumps(report.model_copy(update={"files": named}).model_dump(mode="json"))
    )
    problem(http.get("/jobs/r/opinions?format=jsonl"), 503, "results-away")
    problem(http.get("/jobs/r/errors?format=jsonl"), 503, "results-away")
    told = problem(http.get("/jobs/r/errors"), 503, "results-away")
    assert str(tmp_path) not in told["detail"]
    (folder / "report.json").write_text("{")
    problem(http.get("/jobs/r/report"), 503, "results-away")


def test_a_page_has_bounded_bytes(http: httpx2.Client, dicast: Dicast, monkeypatch: pytest.MonkeyPatch) -> None:
    from dicast.app.server.routes import results

    monkeypatch.setattr(results, "PAGE_BYTES", 10)
    finished(dicast, "r", 5)
    assert len(http.get("/jobs/r/opinions").json()["opinions"]) == 1


@pytest.mark.parametrize("state, shown", [("running", 3), ("finishing", 3), ("cancelling", 3), ("cancelled", 0)])
def test_the_newest_errors_are_those_of_a_job_that_runs(
    http: httpx2.Client, dicast: Dicast, state: str, shown: int
) -> None:
    dicast.submit({**JOB, "id": "r"})
    dicast.store.hset(dicast.keys.at("job", "r"), "state", state)
    errors = [
        EvaluationError(judge="a", criterion_id="d", item_id=f"i{n}", replicate=0, kind=ErrorKind.LOST, message="gone")
        for n in range(3)
    ]
    write_page(dicast.settings.results_dir, "r", "abc", "0", 0, [], errors)
    told = http.get("/jobs/r/errors/newest").json()["errors"]
    assert [error["item_id"] for error in told] == ["i2", "i1", "i0"][:shown]
    assert len(http.get("/jobs/r/errors/newest?limit=1").json()["errors"]) == min(shown, 1)


def test_the_newest_errors_have_a_limit(http: httpx2.Client, dicast: Dicast) -> None:
    dicast.submit({**JOB, "id": "r"})
    dicast.store.hset(dicast.keys.at("job", "r"), "state", "running")
    error = EvaluationError(judge="a", criterion_id="d", item_id="i", replicate=0, kind=ErrorKind.LOST, message="gone")
    write_page(dicast.settings.results_dir, "r", "abc", "0", 0, [], [error] * 120)
    for query, count in (("", 20), ("?limit=100", 100), ("?limit=1", 1)):
        assert len(http.get(f"/jobs/r/errors/newest{query}").json()["errors"]) == count
    for query in ("?limit=101", "?limit=0"):
        problem(http.get(f"/jobs/r/errors/newest{query}"), 422, "request-refused")
