"""Makes one call to a provider: builds its request, holds its lease, reads its answer, and returns how it ended.

The lease is given back as soon as the call has ended, before anything is written, because other units wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from dicast.app import logs
from dicast.app.domain.dimension import Dimension
from dicast.app.domain.image import ImageError
from dicast.app.domain.material import TemplateError
from dicast.app.domain.nonce import nonce_for
from dicast.app.domain.opinion import FailureKind
from dicast.app.domain.prompt import Prompt, batch_prompt, single_prompt
from dicast.app.domain.variants import REVERSED, SINGLE
from dicast.app.domain.verdict import Judgment, Malformed, read_batch, read_single
from dicast.app.ledger.records import Claim
from dicast.app.pipeline.call_facts import (
    NO_ANSWER,
    Answered,
    Call,
    Cut,
    Delay,
    Failed,
    Models,
    NotMade,
    Outcome,
    outcome_of_failure,
    outcome_of_reply,
)
from dicast.app.pipeline.images import Images
from dicast.app.pipeline.record import retry_until_available
from dicast.app.providers.base import ChatReply, ChatRequest, ImagePart, Provider, ProviderFailure
from dicast.app.submission.rendering import AsyncRenderer, RendererUnavailable
from dicast.workers.admission.request import Lease
from dicast.workers.policy.calls import CallOutcome

logger = logging.getLogger(__name__)

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
    """Makes calls on one event loop, and writes nothing. `images` reads the images of items, and `renderer` renders
    jobs' templates."""

    def __init__(self, pools: CalledPools, secret: Secret, images: Images, renderer: AsyncRenderer) -> None:
        self._pools, self._secret, self._images, self._renderer = pools, secret, images, renderer

    async def call(self, call: Call, lease: Lease | None) -> Outcome:
        """Make a call whose units are claimed, and return how it ended; its lease is over then. Without a lease, or
        with one that leaves too little time, no call is made and the message comes again. Raises errors of this program
        before the call; those of reading its answer are an outcome."""
        if lease is None:  # with a delay, or the message would circulate without pause
            return NotMade(Delay.NO_LEASE, 1.0)
        full_s = self._pools.call_timeout_s(call.deployment.pool)
        left_s = lease.expires_at - asyncio.get_running_loop().time() - LEASE_MARGIN_S
        if left_s < MIN_TIME_SHARE * full_s:
            return NotMade(Delay.SHORT_LEASE)
        try:
            provider = self._pools.provider(call.deployment.pool)
        except ProviderFailure as failure:
            return Failed(failure, was_made=False)
        if call.token.batch and (not provider.structured_output or call.item.probe == SINGLE):
            return NotMade(Delay.ONE_BY_ONE)
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
            return NotMade(Delay.NO_RENDERER, 1.0)
        except (TemplateError, ImageError) as error:
            why = f"the job's template: {error}" if isinstance(error, TemplateError) else str(error)
            return Failed(ProviderFailure(FailureKind.REJECTED, why, reached=False), was_made=False)
        if not lease.may_begin():
            return NotMade(Delay.FORBIDDEN)
        return await self._exchange(call, lease, provider, request, min(full_s, left_s), nonce)

    async def _exchange(
        self, call: Call, lease: Lease, provider: Provider, request: ChatRequest, call_timeout_s: float, nonce: str
    ) -> Outcome:
        """Send the request and read the reply. The call may take `call_timeout_s`, or less where the units' deadline
        comes first. If it takes all of that and the provider has not ended it, the provider may still be working on it:
        its lease then counts for another `call_timeout_s`."""
        loop, reporter = asyncio.get_running_loop(), f"{call.ref}.{call.token}"
        started = loop.time()
        timeout_s = max(0.0, min(call_timeout_s, call.ends_at - started))
        try:
            async with asyncio.timeout(timeout_s) as limit:
                lease.end_call, lease.at_provider = partial(limit.reschedule, started), request.transit.is_open
                reply = await provider.complete(request)
            request.transit.ended = True
            lease.outcome = outcome_of_reply(reply, reporter, time.time())
            lease.release()  # others need not wait until the answer is read
            return _read(call, reply, nonce, loop.time() - started)
        except TimeoutError:
            if lease.is_cut:
                return Cut(loop.time() - started)
            cut = _timeout_failure(timeout_s, call_timeout_s)
            if timeout_s >= call_timeout_s:
                lease.further_s = call_timeout_s
            if timeout_s >= MIN_TIME_SHARE * call_timeout_s:
                lease.outcome = CallOutcome(NO_ANSWER, reporter=reporter, error=cut.message)
            call.log(logs.timed_out, timeout_s=round(timeout_s, 3))
            return Failed(cut, loop.time() - started)
        except ProviderFailure as failure:
            request.transit.ended = failure.ended
            if failure.kind is FailureKind.TIMEOUT:
                lease.further_s = call_timeout_s
            lease.outcome = outcome_of_failure(failure, reporter, time.time())
            return Failed(failure, loop.time() - started)
        except asyncio.CancelledError as cancelled:
            return Cut(loop.time() - started, cancelled)
        except Exception as error:  # a fault of this program: the call counts all the same
            logger.exception("job %s, unit %s.%s.%s", call.ref.job, call.ref.lane, call.ref.page, call.token)
            return Failed(ProviderFailure(FailureKind.INTERNAL, repr(error)), loop.time() - started)
        finally:
            lease.end_call = None
            lease.release()


def _read(call: Call, reply: ChatReply, nonce: str, latency_s: float) -> Outcome:
    opinions = (_read_batch if call.token.batch else _read_single)(call, reply, nonce)
    if isinstance(opinions, ProviderFailure):
        return Failed(opinions, latency_s, reply.usage)
    return Answered(opinions, reply.model, reply.usage, latency_s)


def _read_single(call: Call, reply: ChatReply, nonce: str) -> dict[Claim, Judgment] | ProviderFailure:
    verdict = read_single(
        reply.text, structured=reply.structured, nonce=nonce, scale=call.dimensions[0].scale, dissent=call.is_chief
    )
    if isinstance(verdict, Malformed):
        reason = f"{verdict.reason} (cut at max_tokens)" if reply.truncated else verdict.reason
        return ProviderFailure(FailureKind.MALFORMED, f"answer refused: {reason}", status_code=200)
    return {call.claims[0]: verdict}


def _read_batch(call: Call, reply: ChatReply, nonce: str) -> dict[Claim, Judgment]:
    """Return the valid opinions of a batch, and log what is missing or corrupt."""
    reading = read_batch(
        reply.text, structured=reply.structured, nonce=nonce, dimensions=call.dimensions, dissent=call.is_chief
    )
    for corrupt in reading.corrupt:
        call.log(logs.corrupt, dimension=corrupt.dimension_id, reason=corrupt.reason, payload=corrupt.raw)
    if reading.missing:
        call.log(logs.corrupt, reason=f"{len(reading.missing)} of {len(call.claims)} dimensions are missing",
                 payload="", missing=reading.missing)  # fmt: skip
    by_id = {d.id: c for d, c in zip(call.dimensions, call.claims, strict=True)}
    return {by_id[name]: verdict for name, verdict in reading.accepted.items()}


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
