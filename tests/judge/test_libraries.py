"""A job that needs libraries which no worker has is told so at once, and ends; others are left to whoever has them."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dicast.app import analysis
from dicast.app.application import create_app
from dicast.app.domain.plan import Intervals
from dicast.app.domain.refusals import JobRefused
from dicast.app.ledger.records import JobState
from dicast.app.pipeline import question
from dicast.app.pipeline.gather import Gatherer
from dicast.app.pipeline.lanes import Lanes
from dicast.app.pipeline.start import Preparation, Starter, Terms
from dicast.app.reports.files import read_report
from dicast.workers.nodes.registry import Node
from tests.command import JOB, Dicast
from tests.judge.desk import Scripted
from tests.ledger.bench import a_job

QUESTION = {"mean_at_least": 3.0}


@pytest.fixture
def without_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    found = analysis.find_spec
    for module in (analysis, question):
        monkeypatch.setattr(module, "find_spec", lambda name: None if name in analysis.LIBRARIES else found(name))


class World:
    """A worker without the libraries."""

    def __init__(self, bench: Any, desk: Any, folder: Path) -> None:
        self.bench, self.started, self.told = bench, asyncio.Event(), []
        bench.one.intervals = Intervals(elsewhere_s=0.01)
        judge = desk(Scripted())
        gatherer = Gatherer(bench.one, str(folder), judge.pools, judge.asking, self, self)
        terms = Terms(bench.registry, SimpleNamespace(max_concurrent_llm_calls=5))  # type: ignore[arg-type]
        lanes = Lanes(bench.one, None, self, None, None)  # type: ignore[arg-type]
        preparation = Preparation(bench.one, bench.client, str(folder))
        self.starter = Starter(bench.one, preparation, terms, None, lanes, gatherer)  # type: ignore[arg-type]

    def announce(self, job_id: str, end: Any, continuations: Any) -> None:
        self.told.append(end.report["reason"])

    async def start(self, job_id: str) -> None:
        self.started.set()


def lacking(bench: Any, *nodes: int) -> None:
    for number in nodes:
        bench.registry.announce(replace(bench.nodes[number], missing_extras=("scores",)))
        bench.redis.persist(bench.one.keys.base.node(bench.nodes[number].id))


@pytest.mark.usefixtures("without_libraries")
async def test_a_question_that_no_worker_can_answer_cancels_its_job(bench: Any, desk: Any, tmp_path: Path) -> None:
    """It stood at "waits: NoLibraries", and then at `finishing`, for ever."""
    world = World(bench, desk, tmp_path)
    lacking(bench, 0, 1)
    bench.submit(type(a_job()).model_validate({**a_job(dimensions=1).model_dump(), "question": QUESTION}))
    await world.starter.start("j")
    status = bench.client.status("j")
    assert (status.state, status.counters["calls"]) == (JobState.CANCELLED, 0)
    assert status.why.startswith("a job's question needs them: the libraries for statistics are not installed here")
    assert world.told == [status.why] == [read_report(tmp_path, "j").reason]


@pytest.mark.usefixtures("without_libraries")
async def test_a_question_is_left_to_a_worker_that_may_answer_it(bench: Any, desk: Any, tmp_path: Path) -> None:
    """Five looks by workers without the libraries cancelled it, whoever else there was."""
    world = World(bench, desk, tmp_path)
    lacking(bench, 0)
    bench.submit(type(a_job()).model_validate({**a_job(dimensions=1).model_dump(), "question": QUESTION}))
    await world.starter.start("j")
    assert bench.client.status("j").state is JobState.SUBMITTED
    assert bench.client.status("j").waits_for.startswith("it is left to workers that have the libraries")
    await asyncio.wait_for(world.started.wait(), 10)
    assert not bench.redis.exists(bench.one.keys.trouble("j"))


@pytest.mark.usefixtures("without_libraries")
@pytest.mark.parametrize("field", ["question", "groups"])
def test_it_is_said_before_anything_is_judged(
    environ: dict[str, str], caplog: pytest.LogCaptureFixture, field: str
) -> None:
    app = create_app(environ)
    try:
        items = [{"id": f"i{n}", "text": "a text", "metadata": {"system": "ab"[n % 2]}} for n in range(4)]
        job = {**JOB, "items": items, "dimensions": JOB["dimensions"][:1]}
        job |= {"question": QUESTION} if field == "question" else {"groups": ["system"], "keep": ["system"]}
        app.submit({**job, "id": "nobody-lives"})
        old = Node.for_this_process("old@test", limit=5, slots=5)
        app.registry.announce(old)
        app.submit({**job, "id": "nobody-tells"})
        assert not caplog.records
        app.registry.deregister(old)
        app.registry.announce(
            Node.for_this_process("w@test", limit=5, slots=5, version="1", missing_extras=("scores",))
        )
        app.submit({**JOB, "id": "needs-none"})
        with caplog.at_level(logging.WARNING):
            if field == "question":
                with pytest.raises(JobRefused, match="question: no living worker has the libraries"):
                    app.submit({**job, "id": "j"})
                assert app.ledger.is_free("j")
                return
            app.submit({**job, "id": "j"})
        assert "j: groups: no living worker has the libraries for statistics" in caplog.text
        app.registry.announce(Node.for_this_process("able@test", limit=5, slots=5, version="1"))
        caplog.clear()
        app.submit({**job, "id": "somebody-can"})
        assert not caplog.records
    finally:
        app.close()


@pytest.mark.usefixtures("without_libraries")
def test_validate_says_what_is_missing_here(at_once: Dicast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.json").write_text(json.dumps({**JOB, "dimensions": JOB["dimensions"][:1], "question": QUESTION}))
    notes = json.loads(at_once("validate", str(tmp_path / "job.json"), "--json").stdout)["notes"]
    assert "question: the libraries for statistics are not installed here: pip install -e '.[scores]'" in notes[-1]
