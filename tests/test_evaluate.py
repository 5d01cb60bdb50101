"""What `evaluate` says of itself, and to whoever calls it wrongly; and the asyncio client."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dicast.app.aio import AsyncClient
from dicast.app.application import create_app
from dicast.app.domain.refusals import InvalidJob, JobRefused
from dicast.app.ledger.client import JobConflict, UnknownJob
from dicast.app.ledger.records import JobState
from dicast.app.tasks import evaluate
from tests.command import JOB
from tests.reports.building import files_in, header

TAKES = "evaluate takes one job: an EvaluationJob, a dict of one, or a submitted job's id; "


def test_it_says_what_it_takes() -> None:
    assert list(inspect.signature(evaluate).parameters) == ["job"]
    assert list(inspect.signature(evaluate.delay).parameters) == ["job"]
    assert "`job` is an `EvaluationJob`, a dict of one" in (inspect.getdoc(evaluate) or "")


@pytest.mark.parametrize(
    "given, named, said",
    [
        ((5,), {}, TAKES + "got 5"),
        ((None,), {}, TAKES + "got None"),
        (([JOB],), {}, TAKES + "got [{'agents'"),
        ((Path("job.yaml"),), {}, TAKES + "got PosixPath('job.yaml')"),
        ((), {}, TAKES + "got 0 arguments"),
        ((JOB, "fast"), {}, TAKES + "got 2 arguments"),
        ((JOB,), {"model": "gpt"}, TAKES + "got 2 arguments (model=)"),
        ((), {"agents": [], "items": []}, TAKES + "got 2 arguments (agents=, items=)"),
        ((), {"task": JOB}, TAKES + "it is called job, not task"),
    ],
)
def test_what_is_no_job_is_told_what_one_is(given: tuple[Any, ...], named: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError) as caught:
        evaluate.apply_async(given, named)
    assert str(caught.value).startswith(said)


def test_a_job_that_is_wrong_is_told_in_plain_words() -> None:
    with pytest.raises(InvalidJob) as caught:
        evaluate.delay({**JOB, "replicates": 0, "judges": []})
    assert caught.value.lines == ["replicates: must be >= 1, got 0", "judges: unknown key; did you mean agents?"]


def test_an_id_that_nobody_submitted_is_not_waited_for(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(environ)
    monkeypatch.setattr("dicast.app.tasks.app", app)
    with pytest.raises(UnknownJob, match=r"no job 'job\.yaml'"):
        evaluate.delay("job.yaml")
    app.close()


def test_a_parameter_that_no_pool_allows_is_told_to_whoever_submits_it(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(environ)
    monkeypatch.setattr("dicast.app.tasks.app", app)
    with pytest.raises(JobRefused, match=r"'a': params\.top_k: pool 'sim' allows none .*, got 40"):
        evaluate.delay({**JOB, "agents": [{"name": "a", "params": {"top_k": 40}}]})
    assert list(app.ledger.jobs()) == []
    app.close()


def test_a_submitter_loads_nothing_that_only_workers_need(environ: dict[str, str], tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import dicast.app.tasks"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = {line.rpartition("|")[2].strip() for line in run.stderr.splitlines()}
    ours = {"app.assembly", "app.cluster.metrics", "workers.admission.gate", "workers.admission.governor"}
    assert "dicast.app.application" in loaded
    assert not loaded & {*(f"dicast.{module}" for module in ours), "pyarrow", "openai", "rich"}


async def test_asyncio_programs_submit_wait_and_cancel(environ: dict[str, str]) -> None:
    app = create_app(environ)
    async with AsyncClient(app=app) as client:
        job_id = await client.submit({**JOB, "id": "mine"})
        assert (job_id, (await client.status("mine")).state) == ("mine", JobState.SUBMITTED)
        with pytest.raises(JobConflict):
            await client.submit({**JOB, "id": "mine", "replicates": 2})
        with pytest.raises(UnknownJob):
            await client.wait("nobody")
        waiting = asyncio.ensure_future(client.wait("mine"))
        assert await client.cancel("mine") is JobState.SUBMITTED
        report = _report()
        app.store.hset(app.keys.at("job", "mine"), mapping={"state": "cancelled", "report": report})
        async with asyncio.timeout(20):
            assert (await waiting).model_dump_json() == report


def _report() -> str:
    from dicast.app.domain.report import ReportBuilder

    return ReportBuilder(header(1, job_id="mine", status="cancelled")).build(files_in("/nowhere")).model_dump_json()
