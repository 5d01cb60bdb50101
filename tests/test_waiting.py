"""Why a job stands still: what the front end says of it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from dicast.app.application import create_app
from dicast.app.cluster.snapshot import SharedState
from dicast.app.domain.plan import Intervals
from dicast.app.ledger.client import WAITS_SHOWN_MS
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import GatherFailed, JobState
from dicast.app.operator import waiting
from dicast.app.pipeline.gather import Gatherer, GatherResult
from dicast.app.pipeline.messages import CONTROL_QUEUE, EVALUATE
from dicast.app.reports import files
from dicast.workers.admission.governor import Governor
from dicast.workers.admission.leases import LeaseStore, Want
from dicast.workers.admission.overrides import Overrides
from dicast.workers.admission.pool_state import Outage
from dicast.workers.nodes.registry import Node
from dicast.workers.policy.rules import RulesStatus
from dicast.workers.store.connection import connect_async
from tests.command import JOB, Dicast
from tests.workers.test_pool_state import CALM

DISK = "its results cannot be written: /r/job/parts: No space left on device"


@pytest.fixture
def app(environ: dict[str, str]) -> Iterator[Any]:
    app = create_app(environ)
    app.registry.announce(Node.for_this_process("w@test", limit=5, slots=5))
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
    for node, _ in app.registry.registered():
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
    for node, _ in app.registry.registered():
        app.registry.deregister(node)
    app.registry.announce(Node.for_this_process("other@test", limit=5, slots=5, version="1.0"))
    counts = iter([0, 10, 10])
    monkeypatch.setattr(waiting, "depth", lambda *_: next(counts))
    assert waiting.reason(app, app.ledger.status("j")) is None
    said = "the units of pool sim wait, for no living node takes them: none reads its queue"
    assert waiting.reason(app, app.ledger.status("j")) == said


def killed(app: Any, calls: int, *, limit: int, heard: bool = False, of_job: int = 50, elsewhere: int = 0) -> None:
    """A worker that had all slots of a job is killed, and another one asks for more of them. `heard`: nobody has proven
    its death yet, nor has it fallen silent. It had some calls in another pool, too."""
    start(app)
    app.store.hset(app.keys.at("job", "j"), "limit", of_job)

    async def ask() -> None:
        async with connect_async(app.store_url) as client:
            await client.hset(app.keys.job_limits, mapping={"j": of_job, "k": max(of_job, limit)})
            await client.delete(app.keys.epoch)
            await client.hset(app.keys.epoch, "number", 1)  # a store that is in use already
            for pool in ("sim", "other"):
                await Governor(client, app.keys, lambda _: Overrides(limit=limit, adaptive=False)).tick(pool)
            leases = LeaseStore(client, app.keys)
            wants = [Want(f"l{n}", "j", "news", "m") for n in range(calls + 1)]
            more = {"pool": "sim", "ttl_ms": 130_000, "cut_frees": False}
            others = [Want(f"o{n}", "k", "news", "m") for n in range(elsewhere)]
            await leases.admit(node=dead.id, give_back=[], wants=others, **{**more, "pool": "other"})
            granted = await leases.admit(node=dead.id, give_back=[], wants=wants[:calls], **more)
            assert (granted.open_in_pool, granted.open_in_all) == (calls, calls + elsewhere)
            if not heard:
                app.registry.deregister(dead)
            assert (await leases.admit(node="w", give_back=[], wants=wants[calls:], **more)).open_in_pool == calls

    dead = Node.for_this_process("dead@test", limit=5, slots=5)
    app.registry.announce(dead, RulesStatus(5, 5, 0.0, 0.0, "start", 0))
    asyncio.run(ask())


CUT = (
    r"[24] were cut, and count for up to 2 min more, since the provider "
    r"may still be working on them \(.* cut_frees = true in the pools file frees the next ones at once\)"
)


def test_a_pool_that_stands_still_for_the_leases_of_a_killed_worker_says_so(app: Any, at_once: Dicast) -> None:
    """It stood still for a call's time-out and ten seconds, and no word was said but by who had looked for it."""
    killed(app, 2, limit=2)
    said = waiting.reason(app, app.ledger.status("j"))
    assert said is not None and re.fullmatch(f"pool sim: it stands still: of its 2 open calls ({CUT})", said), said
    shown = at_once("jobs", "show", "j", "--json").stdout
    assert "cut_frees = true" in json.loads(shown)["waits_for"]
    for told_by in (at_once("governor", "show"), at_once("doctor")):
        assert "it stands still: of its 2 open calls 2 were cut" in " ".join(told_by.stdout.split())


@pytest.mark.parametrize(
    ("slots", "said"),
    [
        ({"limit": 8, "of_job": 2}, f"of the 2 calls that the job may have open ({CUT})"),
        ({"limit": 4, "of_job": 4, "elsewhere": 2}, f"of the 4 calls that may be open in all pools ({CUT})"),
    ],
)
def test_a_job_whose_own_limit_or_that_of_all_they_take_says_so(app: Any, slots: dict[str, int], said: str) -> None:
    killed(app, 2, **slots)
    told = waiting.reason(app, app.ledger.status("j"))
    assert told is not None and re.fullmatch(said, told), told


def test_a_job_with_a_call_that_somebody_waits_for_does_not_stand_still(app: Any) -> None:
    killed(app, 2, limit=2, heard=True)
    assert waiting.reason(app, app.ledger.status("j")) is None


def test_leases_of_a_worker_that_is_silent_are_told_likewise(app: Any) -> None:
    killed(app, 2, limit=2, heard=True)
    for node, _ in app.registry.registered():
        if node.name == "dead@test":
            app.registry.silence(node)
    said = waiting.reason(app, app.ledger.status("j"))
    assert said is not None and "2 are of nodes that cannot be heard, and count for up to 2 min more" in said


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
    assert await gatherer.gather(_ref()) == GatherResult()
    assert said == [("j", "its results cannot be written: /r/j/parts/0.jsonl: No space left on device")]


def _ref() -> Any:
    from dicast.app.ledger.keys import PageRef

    return PageRef("j", "then", 0, 0)
