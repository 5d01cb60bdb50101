"""Variants of the pipeline's parts that record spans.

They are built in place of the plain parts where traces are on, so that tracing costs nothing elsewhere.

A trace: submit > publish page > judge > (lease wait, claim, call, record), and submit > gather page.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import Deferral, Due, JobRecord, MessageId, Recorded, UnitResult
from dicast.app.pipeline.call_facts import NextSteps
from dicast.app.pipeline.gather import Gatherer, GatherResult
from dicast.app.pipeline.judge import Claimer, ClaimReply, Judge
from dicast.app.pipeline.messages import Messages
from dicast.app.pipeline.pools import ServedPools
from dicast.app.pipeline.record import Recorder
from dicast.app.providers.base import ChatReply, ChatRequest, Provider, ProviderFailure
from dicast.app.tracing import HEADER, PUBLISHED, Tracer, current, trace_of
from dicast.workers.admission import request

if TYPE_CHECKING:
    from dicast.app.domain.plan import Choice
    from dicast.app.pipeline.plan import PageMessages
    from dicast.config.pools import PoolSpec

T = TypeVar("T")


class Traced:
    """Mixed into a part of the pipeline: holds the tracer that takes its spans."""

    tracer: Tracer


def traced_maker(part: type[T], tracer: Tracer) -> Callable[..., T]:
    """Return a function that builds the traced variant of a part."""
    (kind,) = [kind for kind in Traced.__subclasses__() if issubclass(kind, part)]

    def make(*arguments: Any) -> T:
        instance: Any = kind(*arguments)
        instance.tracer = tracer
        return cast("T", instance)

    return make


class TracedMessages(Traced, Messages):
    """Records the publishing of a page as a child of its job's submission. The work of its messages is a child of
    that."""

    async def page(self, job: JobRecord, page: PageMessages) -> None:
        place, messages = page.ref.place, len(page.tokens)
        with self.tracer.span("publish page", job.traceparent, job=job.id, page=place, messages=messages):
            await super().page(job, page)

    def _unit(self, job: JobRecord, ref: PageRef, token: MessageId, choice: Choice, *item_chars: int) -> Any:
        message = super()._unit(job, ref, token, choice, *item_chars)
        traces = {HEADER: current() or job.traceparent, PUBLISHED: round(time.time(), 3)}
        message.options["headers"][request.HEADER].update(traces)
        return message


class TracedJudge(Traced, Judge):
    """Records one message's work, from its lease on, and beside it the time for which it waited for the lease."""

    async def judge(
        self, ref: PageRef, token: MessageId, lease: request.Lease | None, deployment: int = 0, *,
        came_back: bool = False, rejection: ProviderFailure | None = None, early: bool = False,
    ) -> NextSteps:  # fmt: skip
        parent, published = trace_of(lease.unit.labels if lease is not None else {})
        if not parent and lease is None:  # with a lease, the call must not wait for a read that only the span needs
            job = await self._jobs.get(ref.job, ref.incarnation)
            parent = job.traceparent if job is not None else ""
        unit = f"{ref.lane}.{ref.page}.{token}"
        with self.tracer.span("judge", parent, job=ref.job, unit=unit, came_back=came_back) as span:
            if lease is not None:
                pool = lease.unit.pool
                span.set_attribute("dicast.pool", pool)
                self.tracer.past("lease wait", published, time.time(), pool=pool)
            steps = await super().judge(
                ref, token, lease, deployment, came_back=came_back, rejection=rejection, early=early
            )
            span.set_attribute("dicast.outcome", steps.summary)
            return steps


class TracedClaimer(Traced, Claimer):
    """Records the claim of a message's units."""

    async def claim(
        self, ref: PageRef, token: MessageId, positions: Sequence[int], item: int, again_ms: int | None = None,
        *, early: bool = False,
    ) -> ClaimReply:  # fmt: skip
        with self.tracer.span("claim") as span:
            reply = await super().claim(ref, token, positions, item, again_ms, early=early)
            span.set_attribute("dicast.answers", sorted({claim.verdict.value for claim in reply[2]}))
            return reply


class TracedRecorder(Traced, Recorder):
    """Records writes for a call that is traced. Writes of adopted or recalled results belong to no call."""

    async def store(self, ref: PageRef, counters: dict[str, int], results: Sequence[UnitResult]) -> Recorded:
        if not current():
            return await super().store(ref, counters, results)
        scored = sum(result.scored for result in results)
        with self.tracer.span("record", results=len(results), scored=scored):
            return await super().store(ref, counters, results)

    async def defer(
        self, ref: PageRef, counters: dict[str, int], deferrals: Sequence[Deferral], due: Sequence[Due]
    ) -> None:
        if not current():
            return await super().defer(ref, counters, deferrals, due)
        with self.tracer.span("record", deferred=len(deferrals)):
            return await super().defer(ref, counters, deferrals, due)


class TracedGatherer(Traced, Gatherer):
    """Records the gathering of a page as a child of its job's submission."""

    async def gather(self, ref: PageRef) -> GatherResult:
        job = await self._ledger.job(ref.job)
        with self.tracer.span("gather page", job.traceparent if job is not None else "", job=ref.job, page=ref.place):
            return await super().gather(ref)


class TracedPools(Traced, ServedPools):
    """Builds providers that record each call."""

    def _build(self, spec: PoolSpec) -> Provider:
        return TracedProvider(self.tracer, super()._build(spec), spec)


class TracedProvider:
    """A provider that records each call as a span, named by OpenTelemetry's conventions for generative AI."""

    def __init__(self, tracer: Tracer, provider: Provider, spec: PoolSpec) -> None:
        self._tracer, self._provider = tracer, provider
        self._pool, self._kind = spec.name, spec.provider
        self.structured_output, self.nonce_in_schema = provider.structured_output, provider.nonce_in_schema

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Make one call with the wrapped provider, within a span."""
        with self._tracer.span(f"chat {request.model}", client=True, pool=self._pool) as span:
            span.set_attributes({
                "gen_ai.operation.name": "chat", "gen_ai.provider.name": self._kind,
                "gen_ai.request.model": request.model, "gen_ai.request.max_tokens": request.max_tokens,
            })  # fmt: skip
            try:
                reply = await self._provider.complete(request)
            except ProviderFailure as failure:
                span.set_attribute("error.type", failure.kind.value)
                if failure.status_code is not None:
                    span.set_attribute("http.response.status_code", failure.status_code)
                raise
            except asyncio.CancelledError:
                span.set_attribute("error.type", "cut")
                raise
            span.set_attributes({
                "gen_ai.response.model": reply.model, "gen_ai.usage.input_tokens": reply.usage.input_tokens,
                "gen_ai.usage.output_tokens": reply.usage.output_tokens, "http.response.status_code": 200,
            })  # fmt: skip
            return reply

    async def close(self) -> None:
        await self._provider.close()
