"""A judge on a real ledger, with a provider that answers as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from dicast.app.domain.opinion import Usage
from dicast.app.domain.panel import Deployment
from dicast.app.domain.retry import RetryPolicy
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import Due, MessageId
from dicast.app.ledger.troubles import StopStore
from dicast.app.pipeline.call import ProviderCaller
from dicast.app.pipeline.call_facts import NextSteps
from dicast.app.pipeline.images import StoredImages
from dicast.app.pipeline.judge import Claimer, Judge
from dicast.app.pipeline.outcomes import Outcomes
from dicast.app.pipeline.pool_trouble import FailFast
from dicast.app.pipeline.record import JobCache, Recorder, Spool
from dicast.app.pipeline.recovery import DeadNodes
from dicast.app.providers.base import ChatReply, ChatRequest, ProviderFailure
from dicast.app.providers.simulated import SimulatedJudge as Answers
from dicast.app.providers.simulated import nonce_of
from dicast.app.submission.rendering import AsyncRenderer
from dicast.workers.admission.pool_state import Outages
from dicast.workers.admission.request import GatedUnit, Lease
from tests.ledger.bench import KEYS, Bench

Answer = Callable[[ChatRequest], ChatReply]


def good(request: ChatRequest) -> ChatReply:
    """What an obedient model says."""
    answers = Answers(1, request.model, f"{request.system}\n{request.user}", 60)
    answer = answers.plain() if request.schema is None else answers.instance(request.schema)
    return ChatReply(orjson.dumps(answer).decode(), "answering-model", Usage(input_tokens=70, output_tokens=30), True)


def failing(error: Exception) -> Answer:
    def fail(_: ChatRequest) -> ChatReply:
        raise error

    return fail


class Scripted:
    """Gives one answer after the other, the last one for ever; `asked` are the requests."""

    structured_output = True
    caches = False

    def __init__(self, *answers: Answer, nonce_in_schema: bool = False) -> None:
        self.asked: list[ChatRequest] = []
        self.nonce_in_schema = nonce_in_schema
        self._answers = list(answers) or [good]

    @property
    def nonces(self) -> list[str | None]:
        return [nonce_of(request.user) for request in self.asked]

    async def complete(self, request: ChatRequest) -> ChatReply:
        self.asked.append(request)
        return self._answers[min(len(self.asked), len(self._answers)) - 1](request)

    async def close(self) -> None: ...


class DeskPools:
    """What the parts are told of pools, of the installation's secret, and of the dead."""

    def __init__(self, desk: Any, timeout_s: float) -> None:
        self._desk, self._timeout_s = desk, timeout_s

    def model(self, deployment: Deployment) -> str:
        return deployment.model or "asked-model"

    def provider(self, _: str) -> Any:
        if isinstance(self._desk.provider, ProviderFailure):
            raise self._desk.provider
        return self._desk.provider

    def call_timeout_s(self, pool: str) -> float:
        return {None: 1e9}.get(pool, self._timeout_s)

    async def get(self) -> bytes:
        return b"secret"

    def reap(self) -> int:
        return 0


class Desk:
    """One worker's judge. `policy` waits for nothing."""

    def __init__(
        self,
        bench: Bench,
        folder: Path,
        provider: Any,
        *,
        fail_fast: int = 20,
        recheck_s: float = 60.0,
        timeout_s: float = 60.0,
        **policy: Any,
    ) -> None:
        self.bench, self.provider = bench, provider
        self.pools = DeskPools(self, timeout_s)
        store = StopStore(bench.asyncs, KEYS)
        self.asking = FailFast(store, self.pools, fail_fast=fail_fast, recheck_s=recheck_s)
        ledger, self.jobs = bench.one, JobCache(bench.one)
        self.recorder = Recorder(ledger, Spool(folder, "test", "here"))
        self.dead_nodes = DeadNodes(ledger, self.pools)
        retries = RetryPolicy(**{"initial_s": 0.0, "max_s": 0.0, **policy})
        self.outcomes = Outcomes(ledger, self.recorder, retries, self.asking, Outages(bench.asyncs, KEYS), self.pools)
        claimer = Claimer(ledger, self.recorder, self.dead_nodes)
        self.caller = self._caller(folder)
        self.judge = Judge(self.jobs, claimer, self.asking, self.pools, self.caller, self.outcomes)
        self.cut_frees = True
        self.leases: list[Lease] = []
        self.released: list[Lease] = []

    def _caller(self, folder: Path) -> ProviderCaller:
        return ProviderCaller(self.pools, self.pools, StoredImages(str(folder / "results")), AsyncRenderer())

    async def job(self, ref: PageRef) -> Any:
        return await self.jobs.get(ref.job, ref.incarnation)

    async def do(
        self, ref: PageRef, token: str | int, *, lease_s: float = 600.0, probe: bool = False, **more: Any
    ) -> NextSteps:
        """One message's work. What it defers is not waited for: the next `do` comes at once."""
        ends_at = asyncio.get_running_loop().time() + lease_s
        unit = GatedUnit(ref.job, "p", {})
        lease = None
        if lease_s:
            lease = Lease(
                self.released.append, lambda call: call(), "l", unit, ends_at, probe=probe, cut_frees=self.cut_frees
            )
            self.leases.append(lease)
        return await self.judge.judge(ref, MessageId.parse(str(token)), lease, **more)

    async def again(self, ref: PageRef, token: str | int, times: int, *, probe: bool = False) -> NextSteps:
        """The same message so often, as if each wait were over."""
        for _ in range(times):
            await self.bench.asyncs.hdel(self.bench.one.keys.page(ref), f"w:{token}")
            outcome = await self.do(ref, token, probe=probe)
        return outcome

    async def results(self, ref: PageRef) -> dict[int, dict[str, Any]]:
        """Position -> {"opinion", "error"?} of the units that have ended."""
        fields = await self.bench.asyncs.hgetall(self.bench.one.keys.page(ref))
        results = {int(name[2:]): text.partition(";")[2] for name, text in fields.items() if name.startswith("r:")}
        return {position: orjson.loads(text) for position, text in results.items()}

    async def counters(self, job: str) -> dict[str, str]:
        found: dict[str, str] = await self.bench.asyncs.hgetall(self.bench.one.keys.job(job))
        return found


def said(score: int, nonce: str | None) -> str:
    """A single answer's text."""
    answer = {"nonce": nonce, "argument": "Because it is so.", "cited_evidence": [], "score": score}
    return orjson.dumps(answer).decode()


def dump(requests: Sequence[ChatRequest]) -> list[bytes]:
    """Requests as bytes, to be compared."""
    return [
        orjson.dumps({name: getattr(r, name) for name in ChatRequest.__dataclass_fields__}, default=sorted)
        for r in requests
    ]


class Endless(Scripted):
    """Never answers."""

    async def complete(self, request: ChatRequest) -> ChatReply:
        self.asked.append(request)
        return await asyncio.get_running_loop().create_future()


def deferred(judge: Any) -> dict[str, Due]:
    """What is put off from now on: each message, and when it is due."""
    found: dict[str, Due] = {}
    defer = judge.recorder.defer

    async def noted(ref: Any, counters: Any, deferrals: Any, due: Any) -> Any:
        found.update({str(message.token): message for message in due})
        return await defer(ref, counters, deferrals, due)

    judge.recorder.defer = noted
    return found


# ---------------------------------------------------------------------- batches
def batch_of(judge: Any, *names: str) -> Any:
    def answer(_: ChatRequest) -> ChatReply:
        entries = [{"criterion_id": n, "argument": "So.", "cited_evidence": [], "score": 7} for n in names]
        text = orjson.dumps({"nonce": judge.provider.nonces[-1], "opinions": entries}).decode()
        return ChatReply(text, "m", Usage(input_tokens=60, output_tokens=20), structured=True)

    return answer


def recording(judge: Any, *found: tuple[bool, bool]) -> None:
    """What the ledger says of one write after the other: plan the lane, gather the page."""
    store, left = judge.recorder.store, list(found)

    async def told(*results: Any) -> Any:
        plan, gather = left.pop(0)
        return replace(await store(*results), plan=plan, gather=gather)

    judge.recorder.store = told
