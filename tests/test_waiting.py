"""Why a job stands still: what the front end says of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from dicast.app.application import create_app
from dicast.app.doctor import waiting
from dicast.app.domain.intervals import Intervals
from dicast.app.ledger.client import WAITS_SHOWN_MS
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import GatherFailed
from dicast.app.ledger.states import JobState
from dicast.app.monitoring.snapshot import SharedState
from dicast.app.pipeline.gather import Gathered, Gatherer
from dicast.app.pipeline.messages import CONTROL_QUEUE, EVALUATE
from dicast.app.reports import files
from dicast.workers.admission.outages import Outage
from dicast.workers.nodes.registry import Node
from dicast.workers.store.connection import connect_async
from tests.command import JOB, Dicast
from tests.workers.test_pool_state import CALM

DISK = "its results cannot be written: /r/job/parts: No space left on device"


@pytest.fixture
def app(environ: dict[str, str]) -> Iterator[Any]:
    app = create_app(environ)
    app.registry.announce(Node.here("w@test", limit=5, slots=5))
    yield app
    app.close()


def told(app: Any, reason: str, job: str = "j") -> None:
    async def tell() -> None:
        async with connect_async(app.store_url) as client:
            await Ledger(client, app.keys, "n", claim_ms=1000, calls_max=9).waits(job, reason)

    asyncio.run(tell())


def start(app: Any) -> None:
    app.submit({**JOB, "id": "j"})
    app.store.hset(app.keys.at("job", "j"), mapping={"state": "running", "limit": "5"})


def test_a_workers_word_is_shown_for_a_while(app: Any, at_once: Dicast) -> None:
    start(app)
    told(app, DISK)
    assert app.ledger.status("j").waits_for == waiting.reason(app, app.ledger.status("j")) == DISK
    assert json.loads(at_once("jobs", "show", "j", "--json").stdout)["waits_for"] == DISK
    assert f"waits      {DISK}" in at_once("jobs", "show", "j").stdout
    assert f"job j waits: {DISK}" in at_once("doctor").stdout
    seconds, _ = app.store.time()
    app.store.hset(app.keys.at("job", "j"), "waits_ms", 1000 * seconds - WAITS_SHOWN_MS)
    assert app.ledger.status("j").waits_for is None


def test_a_job_that_cannot_be_finished_says_why_and_is_given_up_on_demand(app: Any, at_once: Dicast) -> None:
    """It stood at `finishing` with no word, the doctor called it well, and `jobs cancel` did nothing."""
    start(app)
    app.store.hset(app.keys.at("job", "j"), mapping={"state": "finishing", "outcome": "completed"})
    assert "1 under way" in at_once("doctor").stdout
    assert "Nothing to do: job j was finishing already." in at_once("jobs", "cancel", "j").stderr

    async def fail() -> None:
        async with connect_async(app.store_url) as client:
            await Ledger(client, app.keys, "n", claim_ms=1000, calls_max=9).finish_failed("j", DISK, 5, 5)

    asyncio.run(fail())
    assert json.loads(at_once("jobs", "show", "j", "--json").stdout)["waits_for"] == DISK
    assert f"job j waits: {DISK}" in at_once("doctor").stdout
    assert (
        f"Given up: job j ends with what can be read of its results ({DISK})." in at_once("jobs", "cancel", "j").stderr
    )
    assert app.ledger.status("j").why == DISK
    app.store.hdel(app.keys.at("job", "j"), "waits_for")
    said = waiting.reason(app, app.ledger.status("j"))
    assert said is not None
    assert "messages wait in dicast.control" in said, "nobody takes the message that would finish it"


def test_an_ended_job_waits_for_nothing(app: Any) -> None:
    start(app)
    told(app, DISK)
    app.store.hset(app.keys.at("job", "j"), "state", "cancelled")
    assert app.ledger.status("j").waits_for is None


def test_no_job_comes_to_be_by_a_word(app: Any) -> None:
    told(app, DISK, "nobody")
    assert not app.store.exists(app.keys.at("job", "nobody"))


def test_a_word_is_bounded(app: Any) -> None:
    start(app)
    told(app, "x" * 10_000 + "\x1b[2J")
    assert len(app.ledger.status("j").waits_for) < 400


def test_no_worker(app: Any) -> None:
    start(app)
    for node, _ in app.registry.known():
        app.registry.deregister(node)
    assert waiting.reason(app, app.ledger.status("j")) == "no worker is alive; start one: celery -A dicast worker"


def test_a_pool_that_is_down(app: Any) -> None:
    start(app)
    state = replace(CALM, pool="sim", open=0, breaker="open", breaker_for_s=12.4, statuses={200: 3, 0: 7, 503: 2})
    assert waiting.reason(app, app.ledger.status("j"), SharedState([state], [])) == (
        "pool sim is down, its circuit breaker is open for 12 s more (no answer: 7, 503: 2)"
    )
    assert waiting.reason(app, app.ledger.status("j"), SharedState([replace(state, pool="other")], [])) is None


def test_a_pool_that_is_down_is_told_while_a_call_tries_it_too(app: Any) -> None:
    start(app)
    outage = Outage(since=940.0, at=996.0, failures=9, units=8, status=0, error="connection failed")
    state = replace(CALM, pool="sim", breaker="half_open", outage=outage)
    app.store.hset(app.keys.open, "j:j", 1)
    said = (
        "pool sim has been down for 60 s: 9 calls have failed in a row, the last 4 s ago "
        "(last error: connection failed)"
    )
    assert waiting.reason(app, app.ledger.status("j"), SharedState([state], [])) == said
    rest = replace(state, breaker="open", breaker_for_s=11.6)
    assert waiting.reason(app, app.ledger.status("j"), SharedState([rest], [])) == (
        f"{said}; its circuit breaker is open for 12 s more"
    )
    assert waiting.reason(app, app.ledger.status("j"), SharedState([replace(CALM, pool="sim")], [])) is None


def test_a_queue_that_nobody_serves(app: Any) -> None:
    app.submit({**JOB, "id": "j"})
    status = app.ledger.status("j")
    assert waiting.reason(app, status) is None
    app.send_task(EVALUATE, args=("j",), task_id="j", queue=CONTROL_QUEUE)
    queue = CONTROL_QUEUE
    assert waiting.reason(app, status) == (
        f"messages wait in {queue} (1) and nobody takes them: does a worker serve that queue (celery worker -Q)?"
    )


def test_a_page_published_during_the_look_is_not_blamed_on_its_queue(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words that say why a pool's units wait, and those of last resort, are chosen by one count of messages."""
    start(app)
    for node, _ in app.registry.known():
        app.registry.deregister(node)
    app.registry.announce(Node.here("other@test", limit=5, slots=5, version="1.0"))
    counts = iter([0, 10, 10])
    monkeypatch.setattr(waiting, "depth", lambda *_: next(counts))
    assert waiting.reason(app, app.ledger.status("j")) is None
    said = "the units of pool sim wait, for no living node takes them: none reads its queue"
    assert waiting.reason(app, app.ledger.status("j")) == said


async def test_a_disk_that_refuses_is_told_by_whoever_meets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page stays: whoever sweeps tries again."""
    said: list[tuple[str, str]] = []

    class Books:
        intervals = Intervals()

        async def lane_stages(self, job: str) -> list[int]:
            return [0]

        async def take_page(self, ref: Any) -> dict[int, str]:
            return {0: '{"opinion": {}}'}

        def attempt(self) -> str:
            return ""

        async def gather_failed(self, job: str, reason: str, *_: Any) -> GatherFailed:
            said.append((job, reason))
            return GatherFailed(JobState.RUNNING, given_up=False)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", "/r/j/parts/0.jsonl")

    monkeypatch.setattr(files, "write_page", full)
    gatherer = Gatherer(Books(), "/r", None, None, None, None)  # type: ignore[arg-type]
    assert await gatherer.gather(_ref()) == Gathered()
    assert said == [("j", "its results cannot be written: /r/j/parts/0.jsonl: No space left on device")]


def _ref() -> Any:
    from dicast.app.ledger.keys import PageRef

    return PageRef("j", "then", 0, 0)
