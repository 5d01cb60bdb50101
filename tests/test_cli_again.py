"""Slips in a command line are told before anything is paid for; and jobs that have ended are run again or deleted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dicast.app.application import create_app
from dicast.app.ledger.client import UnknownJob
from dicast.app.ledger.records import JobState
from dicast.app.operator.jobs import JobNotEnded, delete
from dicast.app.reports.folders import begin, job_folder
from dicast.errors import Exit
from tests.command import Dicast, refused
from tests.page.world import ended
from tests.page.world import job as a_large_job
from tests.reports.test_assessing import finished

JOB = {
    "agents": [{"name": "a"}],
    "dimensions": [{"id": "tone", "instructions": "?"}],
    "items": [{"id": "i", "text": "a text"}],
}


@pytest.fixture
def app(environ: dict[str, str]) -> Any:
    app = create_app(environ)
    yield app
    app.close()


def submitted(app: Any) -> list[str]:
    return [status.id for status in app.ledger.jobs()]


# ---------------------------------------------------------------------------------------------------- before it is paid
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--max-errors", "five"], "gate: max_errors must be a number"),
        (["--max-errors", "five"], "got 'five'"),
        (["--max-errors", "200%"], "max_errors must be <= 1"),
        (["--fail-under", "ton=2"], "'ton' is none of the dimensions, which are tone; did you mean 'tone'?"),
        (["--fail-under", "tone=11"], "tone has a scale of 1 to 10, got 11"),
        (["--fail-under", "tone"], "DIMENSION=SCORE is wanted"),
        (["--not-worse-than", "job-2"], "not_worse_than: no finished job 'job-2'"),
        (["--not-worse-than", "job-2"], "did you mean job-1?"),
        (["--not-worse-than", "job-1"], "no dimension in common"),
        (["--shift", "0.1"], "belongs to not_worse_than"),
        (["--fail-under", "tone=2", "--junit", "nowhere/gate.xml"], "--junit: nothing can be written into"),
        (["--fail-under", "tone=2", "--junit", "."], "--junit: . is a folder"),
        (["--fail-under", "tone=2", "--csv", "nowhere/gate.csv"], "--csv: nothing can be written into"),
        (["--fail-under", "tone=2", "--junit-items"], "--junit-items belongs to --junit FILE"),
        (["--out", "job.json/out"], "--out: nothing can be written into"),
    ],
)  # fmt: skip
def test_a_slip_in_an_option_is_told_before_anything_is_submitted(
    at_once: Dicast, app: Any, tmp_path: Path, options: list[str], said: str
) -> None:
    """All calls were made first, and then the exit code said that nothing had been judged."""
    finished(tmp_path / "results")
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    message = refused(at_once("run", "job.json", *options))
    assert said in message and "no worker is alive" not in message
    assert said in refused(at_once("run", "job.json", "--dry-run", *options))
    assert submitted(app) == [] and not (tmp_path / "out").exists()


def test_a_summary_that_cannot_be_written_is_told_before(at_once: Dicast, tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    options = ("run", "job.json", "--fail-under", "tone=2", "--summary")
    told = refused(at_once(*options, GITHUB_STEP_SUMMARY=str(tmp_path / "no" / "summary.md")))
    assert "GITHUB_STEP_SUMMARY: nothing can be written into" in told
    assert not (tmp_path / "no").exists()


def test_the_jobs_own_gate_is_held_against_what_is_there(at_once: Dicast, tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps({**JOB, "gate": {"not_worse_than": "yesterday"}}))
    assert "not_worse_than: no finished job 'yesterday'" in refused(at_once("run", "job.json"))


# --------------------------------------------------------------------------------------------------------------- again
def test_a_job_that_has_ended_is_not_said_to_be_submitted(at_once: Dicast, app: Any, tmp_path: Path) -> None:
    document = a_large_job("essays", 2)
    ended(app, document)
    (tmp_path / "job.json").write_text(json.dumps(document))
    again = at_once("run", "job.json", "--detach")
    assert (again.returncode, again.stdout) == (Exit.OK, "essays\n")
    assert "Job essays was judged before and ended completed on" in again.stderr
    assert "nothing was called" in again.stderr and "--new" in again.stderr and "Submitted" not in again.stderr
    before = app.ledger.incarnation("essays")
    new = at_once("run", "job.json", "--detach", "--new")
    assert (new.returncode, new.stdout) == (Exit.OK, "essays\n") and "Submitted." in new.stderr
    assert app.ledger.incarnation("essays") != before
    assert app.ledger.status("essays").state is JobState.SUBMITTED
    waiting = at_once("run", "job.json", "--detach")
    assert "Submitted before: it is submitted." in waiting.stderr
    assert "job essays is submitted; it can be judged anew when it has ended" in refused(
        at_once("run", "job.json", "--detach", "--new")
    )
    begin(tmp_path / "results", "essays", app.ledger.incarnation("essays"))
    assert (tmp_path / "results" / "essays~abc" / "report.json").exists(), "the earlier results are moved aside"


# ------------------------------------------------------------------------------------------------------------- deletion
def test_an_ended_job_is_deleted_whole(at_once: Dicast, app: Any, tmp_path: Path) -> None:
    ended(app, a_large_job("essays", 2))
    ended(app, a_large_job("others", 2))
    folder = job_folder(tmp_path / "results", "essays")
    (folder / "rating").mkdir()
    (tmp_path / "results" / "essays~0a1b2c").mkdir()
    assert "nobody can confirm it here; pass --yes" in refused(at_once("jobs", "delete", "essays"))
    assert folder.exists()
    done = at_once("jobs", "delete", "essays", "--yes")
    assert done.returncode == Exit.OK, done.stderr
    assert "essays~0a1b2c" in done.stderr
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["essays~0a1b2c", "others"]
    assert submitted(app) == ["others"]
    left = [key for key in app.store.scan_iter() if b"essays" in (key if isinstance(key, bytes) else key.encode())]
    assert left == []
    assert "no job 'essays'" in refused(at_once("jobs", "delete", "essays", "--yes"))
    assert "no job 'essays'" in refused(at_once("jobs", "show", "essays"))


def test_a_job_past_its_retention_is_deleted_with_its_files(at_once: Dicast, app: Any, tmp_path: Path) -> None:
    ended(app, a_large_job("essays", 2))
    app.ledger.delete("essays")
    assert at_once("jobs", "delete", "essays", "--yes").returncode == Exit.OK
    assert list((tmp_path / "results").iterdir()) == []


def test_a_job_that_has_not_ended_is_not_deleted(at_once: Dicast, app: Any, tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps({**JOB, "id": "young"}))
    assert at_once("run", "job.json", "--detach").returncode == Exit.OK
    assert "job young is submitted; it can be deleted when it has ended" in refused(
        at_once("jobs", "delete", "young", "--yes")
    )
    assert submitted(app) == ["young"]
    assert "job id '../x'" in refused(at_once("jobs", "delete", "../x", "--yes"))


def test_an_ended_job_whose_waiters_are_not_told_yet_is_not_deleted(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ended(app, a_large_job("essays", 2))
    app.store.sadd(app.keys.at("outbox"), "essays")
    monkeypatch.setattr("dicast.app.operator.jobs.ANNOUNCED_IN_S", 0.1)
    with pytest.raises(JobNotEnded, match="not announced yet"):
        delete(app, "essays")
    app.store.srem(app.keys.at("outbox"), "essays")
    assert delete(app, "essays") == []
    with pytest.raises(UnknownJob):
        delete(app, "essays")
