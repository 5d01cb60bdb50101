"""Makes one call to a provider: builds its request, holds its lease, and reads its answer.

The lease is given back as soon as the call has ended, before anything is written, because other units wait for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from dicast.app import logs
from dicast.app.domain.dimension import Dimension
from dicast.app.domain.image import ImageError
from dicast.app.domain.material import TemplateError
from dicast.app.domain.nonce import nonce_for
from dicast.app.domain.opinion import FailureKind, Usage
from dicast.app.domain.prompt import Prompt, batch_prompt, single_prompt
from dicast.app.domain.variants import REVERSED, SINGLE
from dicast.app.domain.verdict import Malformed, read_batch, read_single
from dicast.app.pipeline.call_facts import NO_ANSWER, Call, Models, NextSteps, outcome_of_failure, outcome_of_reply
from dicast.app.pipeline.images import Images
from dicast.app.pipeline.outcomes import Outcomes
from dicast.app.pipeline.record import retry_until_available
from dicast.app.providers.base import ChatReply, ChatRequest, ImagePart, Provider, ProviderFailure
from dicast.app.submission.rendering import AsyncRenderer, RendererUnavailable
from dicast.workers.admission.request import Lease
from dicast.workers.policy.calls import CallOutcome

LEASE_MARGIN_S = 5.0
"""A call ends at least this long before its lease does, so that a pool never has more open calls than it grants."""
MIN_TIME_SHARE = 0.5
"""The smallest share of a pool's time-out with which a call is begun. A call that is cut before it has had this share
is not reported to the pool's governor, since the pool might still have answered."""


class CalledPools(Models, Protocol):
    """See `dicast.app.pipeline.pools.ServedPools`."""

    def provider(self, pool: str) -> Provider: ...
    def call_timeout_s(self, pool: str) -> float: ...


class Secret(Protocol):
    """The installation's secret, from which nonces are derived (see `dicast.app.pipeline.nonce_key.NonceKey`)."""

    async def get(self) -> bytes: ...


class ProviderCaller:
    """Makes calls on one event loop and passes their results to `outcomes`. `images` reads the images of items, and
    `renderer` renders jobs' templates."""

    def __init__(
        self, pools: CalledPools, secret: Secret, outcomes: Outcomes, images: Images, renderer: AsyncRenderer
    ) -> None:
        self._pools, self._secret, self._outcomes, self._images = pools, secret, outcomes, images
        self._renderer = renderer

    async def make(self, call: Call, lease: Lease | None) -> NextSteps:
        """Make a call whose units are claimed, and record its outcome. Without a lease, or with one that leaves too
        little time, no call is made and the message comes again."""
        if lease is None:  # with a delay, or the message would circulate without pause
            return await self._outcomes.defer_unpaid(call, 1.0)
        full_s = self._pools.call_timeout_s(call.deployment.pool)
        left_s = lease.expires_at - asyncio.get_running_loop().time() - LEASE_MARGIN_S
        if (
            left_s < MIN_TIME_SHARE * full_s
        ):  # too little time for a whole call: the message comes again for a new lease
            return await self._outcomes.defer_unpaid(call, 0.0)
        try:
            provider = self._pools.provider(call.deployment.pool)
        except ProviderFailure as failure:
            return await self._outcomes.failed(call, failure, 0.0, {"calls": 0}, was_made=False)
        if call.token.batch and (not provider.structured_output or call.item.probe == SINGLE):
            return await self._outcomes.split_batch(call, call.claims, unpaid=True)
        key = await retry_until_available(self._secret.get)
        # Dimensions with a template of their own are asked about alone.
        template = call.job.spec.template_for(call.agent, call.dimensions[0])
        nonce = nonce_for(key, call.agent, _dimensions_in_order(call), call.shown_item, call.replicate, template)
        try:
            lines = None if template is None else await self._renderer.lines(template, call.shown_item, nonce)
            prompt = _prompt(call, nonce, provider, lines)
            images = await self._images.parts(call.job, prompt.images) if prompt.images else ()
            request = _request(call, self._pools.model(call.deployment), prompt, images)
        except RendererUnavailable:
            return await self._outcomes.defer_unpaid(call, 1.0)
        except (TemplateError, ImageError) as error:
            why = f"the job's template: {error}" if isinstance(error, TemplateError) else str(error)
            unusable = ProviderFailure(FailureKind.REJECTED, why, reached=False)
            return await self._outcomes.failed(call, unusable, 0.0, {"calls": 0}, was_made=False)
        if not lease.may_begin():
            return await self._outcomes.defer_unpaid(call, 0.0)
        reply = await self._exchange(call, lease, provider, request, min(full_s, left_s))
        if isinstance(reply, NextSteps):
            return reply
        call.model, call.usage = reply.model, reply.usage
        return await (
            self._read_batch(call, reply, nonce) if call.token.batch else self._read_single(call, reply, nonce)
        )

    async def _exchange(
        self, call: Call, lease: Lease, provider: Provider, request: ChatRequest, call_timeout_s: float
    ) -> ChatReply | NextSteps:
        """Return the provider's reply, or the next steps if there is none. The call may take `call_timeout_s`, or less
        where the units' deadline comes first. If it takes all of that and the provider has not ended it, the provider
        may still be working on it: its lease then counts for another `call_timeout_s`."""
        loop, reporter = asyncio.get_running_loop(), f"{call.ref}.{call.token}"
        started = loop.time()
        timeout_s = max(0.0, min(call_timeout_s, call.ends_at - started))
        try:
            async with asyncio.timeout(timeout_s) as limit:
                lease.end_call, lease.at_provider = partial(limit.reschedule, started), request.transit.is_open
                reply = await provider.complete(request)
            request.transit.ended = True
            lease.outcome = outcome_of_reply(reply, reporter, time.time())
            return reply
        except TimeoutError:
            if lease.is_cut:
                lease.release()
                return await self._outcomes.interrupted(call, loop.time() - started)
            cut = _timeout_failure(timeout_s, call_timeout_s)
            if timeout_s >= call_timeout_s:
                lease.further_s = call_timeout_s
            if timeout_s >= MIN_TIME_SHARE * call_timeout_s:
                lease.outcome = CallOutcome(NO_ANSWER, reporter=reporter, error=cut.message)
            lease.release()
            call.log(logs.timed_out, timeout_s=round(timeout_s, 3))
            return await self._outcomes.failed(call, cut, loop.time() - started, {})
        except ProviderFailure as failure:
            request.transit.ended = failure.ended
            if failure.kind is FailureKind.TIMEOUT:
                lease.further_s = call_timeout_s
            lease.outcome = outcome_of_failure(failure, reporter, time.time())
            lease.release()
            return await self._outcomes.failed(call, failure, loop.time() - started, {})
        except asyncio.CancelledError:
            # The worker stops: hand the unit back, so that it need not wait for the proof of a death.
            await asyncio.shield(self._outcomes.interrupted(call, loop.time() - started))
            raise
        finally:
            lease.end_call = None
            call.latency_s = loop.time() - started
            lease.release()

    # ------------------------------------------------------------------ answers
    async def _read_single(self, call: Call, reply: ChatReply, nonce: str) -> NextSteps:
        verdict = read_single(
            reply.text, structured=reply.structured, nonce=nonce, scale=call.dimensions[0].scale, dissent=call.is_chief
        )
        if isinstance(verdict, Malformed):
            reason = f"{verdict.reason} (cut at max_tokens)" if reply.truncated else verdict.reason
            failure = ProviderFailure(FailureKind.MALFORMED, f"answer refused: {reason}", status_code=200)
            return await self._outcomes.failed(call, failure, call.latency_s, _token_counters(reply.usage))
        recorded = await self._outcomes.scored(
            call, {call.claims[0]: verdict}, {"calls": 1, **_token_counters(reply.usage)}
        )
        return NextSteps.after(recorded)

    async def _read_batch(self, call: Call, reply: ChatReply, nonce: str) -> NextSteps:
        """Accept the valid opinions of a batch. Dimensions that are missing or corrupt are asked for again, one by
        one."""
        reading = read_batch(
            reply.text, structured=reply.structured, nonce=nonce, dimensions=call.dimensions, dissent=call.is_chief
        )
        for corrupt in reading.corrupt:
            call.log(logs.corrupt, dimension=corrupt.dimension_id, reason=corrupt.reason, payload=corrupt.raw)
        if reading.missing:
            call.log(logs.corrupt, reason=f"{len(reading.missing)} of {len(call.claims)} dimensions are missing",
                      payload="", missing=reading.missing)  # fmt: skip
        by_id = {d.id: c for d, c in zip(call.dimensions, call.claims, strict=True)}
        accepted = {by_id[name]: verdict for name, verdict in reading.accepted.items()}
        counters = {"calls": 1, **_token_counters(reply.usage)}
        recorded = await self._outcomes.scored(call, accepted, counters) if accepted else None
        missing_claims = [c for c in call.claims if c not in accepted]
        if not missing_claims:
            return NextSteps.after(recorded)
        unwritten = counters if recorded is None else {}
        if self._outcomes.is_rest_final(call):
            return await self._outcomes.fail_rest(call, missing_claims, unwritten, recorded)
        return await self._outcomes.split_batch(call, missing_claims, spent=1, counters=unwritten, recorded=recorded)


def _timeout_failure(timeout_s: float, own_s: float) -> ProviderFailure:
    if timeout_s < own_s:
        return ProviderFailure(FailureKind.TIMEOUT, f"cut at its deadline, after {timeout_s:.3g} s")
    return ProviderFailure(FailureKind.TIMEOUT, f"no answer within {timeout_s:g} s")


def _request(call: Call, model: str, prompt: Prompt, images: Sequence[ImagePart]) -> ChatRequest:
    return ChatRequest(
        model=model,
        system=prompt.system,
        user=prompt.user,
        max_tokens=prompt.max_tokens,
        temperature=call.agent.temperature,
        schema=prompt.schema,
        images=images,
    )


def _dimensions_in_order(call: Call) -> Sequence[Dimension]:
    """Return the call's dimensions in the order in which its judge reads them."""
    return call.dimensions[::-1] if call.item.probe == REVERSED else call.dimensions


def _prompt(call: Call, nonce: str, provider: Provider, arranged: Sequence[str] | None) -> Prompt:
    fixed = provider.nonce_in_schema
    if call.token.batch:
        return batch_prompt(
            call.agent, _dimensions_in_order(call), call.shown_item, nonce, fixed_nonce=fixed, arranged=arranged
        )
    structured = provider.structured_output
    return single_prompt(
        call.agent,
        call.dimensions[0],
        call.shown_item,
        nonce,
        structured=structured,
        fixed_nonce=fixed,
        arranged=arranged,
    )


def _token_counters(usage: Usage) -> dict[str, int]:
    return {"tokens_in": usage.input_tokens, "tokens_out": usage.output_tokens}
