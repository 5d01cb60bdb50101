"""Makes one call to a provider: builds its request, holds its lease, reads its answer, and returns how it ended.

The lease is given back as soon as the call has ended, before anything is written, because other units wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Protocol

import orjson

from dicast.app import logs
from dicast.app.domain.dimension import MAX_CRITERIA, Criterion, Dimension
from dicast.app.domain.image import ImageError
from dicast.app.domain.item import Item
from dicast.app.domain.material import KEY_BYTES, TemplateError, key_from, nonce_for
from dicast.app.domain.opinion import NO_OPINION, UNCERTAIN, FailureKind
from dicast.app.domain.panel import Agent
from dicast.app.domain.price import Bound, Place, bound_of_request
from dicast.app.domain.prompt import Prompt, batch_prompt, single_prompt
from dicast.app.domain.variants import SINGLE
from dicast.app.domain.verdict import AsWritten, Judgment, Malformed, ScoreTokens, read_batch, read_single
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
    dimensions_in_order,
    outcome_of_failure,
    outcome_of_reply,
)
from dicast.app.pipeline.images import Images
from dicast.app.pipeline.record import retry_until_available
from dicast.app.providers.base import ANSWERS, FLEX, ChatReply, ChatRequest, ImagePart, Provider, ProviderFailure
from dicast.app.providers.exchange import cache_key
from dicast.app.submission.rendering import AsyncRenderer, RendererUnavailable
from dicast.config.settings import Settings
from dicast.workers.admission.request import Lease
from dicast.workers.policy.calls import CallOutcome
from dicast.workers.store.connection import AsyncStoreClient
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import Epoch

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
    """See `NonceKey`."""

    async def get(self) -> bytes: ...


class NonceKey:
    """Reads the installation's secret, from which nonces are derived, for one event loop.

    It is `DICAST_NONCE_KEY` if that is set, else `DICAST_MESSAGE_KEY`, which all processes share anyway, else a random
    key in the store, made once by the first process that needs it, and read again when the store has a new epoch. Only
    the first two outlive the store.
    """

    def __init__(self, client: AsyncStoreClient, keys: Keys, settings: Settings, epoch: Epoch) -> None:
        self._redis, self._at, self._epoch = client, keys.nonce_key, epoch
        self._configured = key_from(settings.nonce_secret, keys.namespace)
        self._stored = (-1, b"")

    async def get(self) -> bytes:
        """Return the secret, which is the same for all processes of the installation. Raises redis errors."""
        if self._configured is not None:
            return self._configured
        epoch = self._epoch.number
        if self._stored[0] != epoch:
            while (key := await self._redis.get(self._at)) is None:
                await self._redis.set(self._at, secrets.token_hex(KEY_BYTES), nx=True)
            self._stored = epoch, bytes.fromhex(key)
        return self._stored[1]


CACHE_TTL_S = 240.0
"""How long a beginning is taken for cached: providers keep it for 5 min after its last use, or longer."""
FIRST_GUESS_S, LONGEST_GUESS_S = 2.0, 30.0
BEGINNINGS_KEPT = 20_000


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """What a call asks, and the nonce that its answer must carry: the same for the same units, whoever prepares it."""

    request: ChatRequest
    nonce: str


class Warmth:
    """Knows which beginnings of requests are in their provider's cache, as far as this process has put them there.

    A cache has a beginning once the first call with it is answered. Until then others with the same beginning wait,
    without a lease, so that the slots go to other items. Times are those of the event loop, s.
    """

    def __init__(self) -> None:
        self._until: OrderedDict[str, tuple[float, bool]] = OrderedDict()
        self._latency_s = FIRST_GUESS_S

    def begin(self, beginning: str, now: float, timeout_s: float) -> float:
        """Begin a call; return how long it has to wait first, 0 if it may be made now."""
        until, is_warm = self._until.get(beginning, (0.0, True))
        if until > now:
            return 0.0 if is_warm else min(self._latency_s, until - now)
        self._keep(beginning, now + timeout_s, is_warm=False)
        return 0.0

    def end(self, beginning: str, started: float, now: float, *, is_warm: bool) -> None:
        """Note the end of a call. Only an answer warms; after a failure the next call tries."""
        if is_warm:
            self._latency_s += (min(now - started, LONGEST_GUESS_S) - self._latency_s) / 8
            self._keep(beginning, now + CACHE_TTL_S, is_warm=True)
        elif not self._until.get(beginning, (0.0, True))[1]:
            del self._until[beginning]

    def _keep(self, beginning: str, until: float, *, is_warm: bool) -> None:
        self._until[beginning] = until, is_warm
        self._until.move_to_end(beginning)
        if len(self._until) > BEGINNINGS_KEPT:
            self._until.popitem(last=False)


class ProviderCaller:
    """Makes calls on one event loop, and writes nothing. `images` reads the images of items, and `renderer` renders
    jobs' templates."""

    def __init__(self, pools: CalledPools, secret: Secret, images: Images, renderer: AsyncRenderer) -> None:
        self._pools, self._secret, self._images, self._renderer = pools, secret, images, renderer
        self._warmth = Warmth()

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
        prepared = await self.prepare(call)
        if not isinstance(prepared, PreparedCall):
            return prepared
        if not lease.may_begin():
            return NotMade(Delay.FORBIDDEN)
        provider, timeout_s = self._pools.provider(call.deployment.pool), min(full_s, left_s)
        if not (provider.caches and prepared.request.shared):
            return await self._exchange(call, lease, provider, prepared, timeout_s)
        loop, beginning = asyncio.get_running_loop(), f"{call.pool} {cache_key(prepared.request)}"
        wait_s = self._warmth.begin(beginning, loop.time(), timeout_s)
        if wait_s:
            return NotMade(Delay.WARMING, wait_s)
        started = loop.time()
        outcome = await self._exchange(call, lease, provider, prepared, timeout_s)
        self._warmth.end(beginning, started, loop.time(), is_warm=isinstance(outcome, Answered))
        return outcome

    async def prepare(self, call: Call) -> PreparedCall | Outcome:
        """Return the request of a call whose units are claimed, or how the call ends because none can be made. Raises
        errors of this program."""
        try:
            provider = self._pools.provider(call.deployment.pool)
        except ProviderFailure as failure:
            return Failed(failure, was_made=False)
        if call.batched and (not provider.structured_output or call.item.probe == SINGLE):
            return NotMade(Delay.ONE_BY_ONE)
        if call.answers > 1 and ANSWERS in call.dropped:
            return NotMade(Delay.ONE_BY_ONE)
        key = await retry_until_available(self._secret.get)
        # Dimensions with a template of their own are asked about alone.
        template = call.job.spec.template_for(call.agent, call.dimensions[0])
        nonce = nonce_for(
            key, call.agent, dimensions_in_order(call.item, call.dimensions), call.shown_item,
            call.replicate if call.answers == 1 else [*call.by_replicate], template,
        )  # fmt: skip
        try:
            lines = None if template is None else await self._renderer.lines(template, call.shown_item, nonce)
            prompt = _prompt(call, nonce, provider, lines)
            images = await self._images.parts(call.job, prompt.images) if prompt.images else ()
            shared = prompt.shared if provider.caches and _is_shared(call) else 0
            request = _request(call, self._pools.model(call.deployment), prompt, images, shared)
        except RendererUnavailable:
            return NotMade(Delay.NO_RENDERER, 1.0)
        except (TemplateError, ImageError) as error:
            why = f"the job's template: {error}" if isinstance(error, TemplateError) else str(error)
            return Failed(ProviderFailure(FailureKind.REJECTED, why, reached=False), was_made=False)
        if call.job.is_capped and (outcome := _beyond_reservation(call, request)) is not None:
            return outcome
        return PreparedCall(request, nonce)

    async def _exchange(
        self, call: Call, lease: Lease, provider: Provider, prepared: PreparedCall, call_timeout_s: float
    ) -> Outcome:
        """Send the request and read the reply. The call may take `call_timeout_s`, or less where the units' deadline
        comes first. If it takes all of that and the provider has not ended it, the provider may still be working on it:
        its lease then counts for another `call_timeout_s`."""
        loop, reporter, request = asyncio.get_running_loop(), f"{call.ref}.{call.token}", prepared.request
        started = loop.time()
        timeout_s = max(0.0, min(call_timeout_s, call.ends_at - started))
        try:
            async with asyncio.timeout(timeout_s) as limit:
                lease.end_call, lease.at_provider = partial(limit.reschedule, started), request.transit.is_open
                reply = await provider.complete(request)
            request.transit.ended = True
            lease.outcome = outcome_of_reply(reply, reporter, time.time())
            lease.release()  # others need not wait until the answer is read
            return read_reply(call, reply, prepared, loop.time() - started)
        except TimeoutError:
            if lease.is_cut:
                return Cut(loop.time() - started, most=_bound_if_sent(request))
            cut = _timeout_failure(timeout_s, call_timeout_s)
            if timeout_s >= call_timeout_s:
                lease.further_s = call_timeout_s
            if timeout_s >= MIN_TIME_SHARE * call_timeout_s:
                lease.outcome = CallOutcome(NO_ANSWER, reporter=reporter, error=cut.message)
            call.log(logs.timed_out, timeout_s=round(timeout_s, 3))
            return Failed(cut, loop.time() - started, most=_bound_if_sent(request))
        except ProviderFailure as failure:
            request.transit.ended = failure.ended
            if failure.kind is FailureKind.TIMEOUT:
                lease.further_s = call_timeout_s
            lease.outcome = outcome_of_failure(failure, reporter, time.time())
            return failed_call(failure, prepared, loop.time() - started)
        except asyncio.CancelledError as cancelled:
            return Cut(loop.time() - started, cancelled, _bound_if_sent(request))
        except Exception as error:  # a fault of this program: the call counts all the same
            logger.exception("job %s, unit %s.%s.%s", call.ref.job, call.ref.lane, call.ref.page, call.token)
            internal = ProviderFailure(FailureKind.INTERNAL, repr(error))
            return Failed(internal, loop.time() - started, most=_bound_if_sent(request))
        finally:
            lease.end_call = None
            lease.release()


def failed_call(failure: ProviderFailure, prepared: PreparedCall, latency_s: float) -> Failed:
    """Return how a call ended that the provider did not answer with a reply."""
    used = failure.usage
    is_told = used is not None and bool(used.input_tokens or used.output_tokens)
    most = _bound(prepared.request) if _may_cost(failure) and not is_told else None
    return Failed(failure, latency_s, used, most=most)


def read_reply(call: Call, reply: ChatReply, prepared: PreparedCall, latency_s: float) -> Outcome:
    """Return how a call ended that the provider has answered."""
    if call.answers > 1:
        opinions = _opinions(call, reply, prepared.nonce)
    else:
        opinions = (_read_batch if call.batched else _read_single)(call, reply, prepared.nonce)
        if call.agent.score_from == "logprobs" and not isinstance(opinions, ProviderFailure):
            opinions = _with_expected(call, reply, prepared.nonce, opinions)
    used = reply.usage
    most = None if used is not None and (used.input_tokens or used.output_tokens) else _bound(prepared.request)
    if isinstance(opinions, ProviderFailure):
        return Failed(opinions, latency_s, reply.usage, most=most)
    ignored = ANSWERS if reply.choices < call.answers else ""
    return Answered(opinions, reply.model, reply.usage, latency_s, most, reply.fingerprint, ignored)


def _opinions(call: Call, reply: ChatReply, nonce: str) -> dict[Claim, Judgment] | ProviderFailure:
    """Return the opinions in a call's several answers, of which each goes to one replicate, as far as they can be read;
    how it failed if there are none."""
    read_one = _read_batch if call.batched else _read_single
    opinions: dict[Claim, Judgment] = {}
    failure: ProviderFailure | None = None
    unanswered = deque(call.by_replicate.values())
    for one_reply in (reply, *reply.others):
        if not unanswered:
            break
        judgments = read_one(call.of(unanswered[0]), one_reply, nonce)
        if isinstance(judgments, ProviderFailure):
            failure = failure or judgments
            continue
        unanswered.popleft()
        opinions |= (
            _with_expected(call, one_reply, nonce, judgments) if call.agent.score_from == "logprobs" else judgments
        )
    return failure if failure is not None and not opinions else opinions


def _beyond_reservation(call: Call, request: ChatRequest) -> Outcome | None:
    """Return how a call of a job with caps or budgets ends that may take more than is reserved, or at another price, or
    at none; None if it takes no more."""
    for budget in call.budgets:
        if (objection := budget.objection(call.place or Place(call.pool, ""))) is not None:
            why = f"{objection}; prices are those of the job's submission"
            return Failed(ProviderFailure(FailureKind.REJECTED, why, reached=False), was_made=False)
    priced_model = call.place.model if call.place is not None else ""
    if (call.job.spec.max_cost is not None or call.budgets) and request.model != priced_model:
        why = f"the pool's model is {request.model!r} now, and no price of it was taken when the job was submitted"
        return Failed(ProviderFailure(FailureKind.REJECTED, why, reached=False), was_made=False)
    needed = _bound(request).input_tokens
    return NotMade(Delay.NO_ROOM, input_tokens=needed) if needed > call.claims[0].input_tokens else None


@lru_cache(maxsize=1)
def _sample_item() -> Item:
    criteria = [Criterion(text="-", points=1)] * MAX_CRITERIA
    return Item(id="-", text="-", prompt="-", reference="-", criteria=criteria)


WORDS_MORE = 1000
"""Bytes that a question may have beyond that on a sample text: other words for other kinds of items."""


def bound_without_item(agent: Agent, dimensions: Sequence[Dimension], *, batch: bool, answers: int = 1) -> Bound:
    """Return the most tokens that a call for so many answers about these dimensions may take beside those of its item.
    An estimate: the request itself is compared with what was reserved by it."""
    item = _sample_item()
    dimensions = [dimension.asked_about(item.criteria) for dimension in dimensions]
    if batch:
        prompt = batch_prompt(agent, dimensions, item, _SAMPLE_NONCE)
    else:
        prompt = single_prompt(agent, dimensions[0], item, _SAMPLE_NONCE, structured=True)
    texts = (prompt.system, prompt.user, orjson.dumps(prompt.schema).decode())
    bound = bound_of_request(texts, 0, prompt.max_tokens * answers)
    return bound._replace(input_tokens=bound.input_tokens + WORDS_MORE)


_SAMPLE_NONCE = "0" * 15 + "1"


def _may_cost(failure: ProviderFailure) -> bool:
    """Whether a call that failed so may be charged: an error status is not, but for a content filter's, and what never
    arrived is not."""
    return failure.reached and failure.kind in (UNCERTAIN | NO_OPINION)


def _bound(request: ChatRequest) -> Bound:
    schema = "" if request.schema is None else orjson.dumps(request.schema).decode()
    most_output = request.max_tokens * request.answers
    return bound_of_request((request.system, request.user, schema), len(request.images), most_output)


def _bound_if_sent(request: ChatRequest) -> Bound | None:
    """Return what a call that was cut may have cost; None if no part of it was sent."""
    return _bound(request) if request.transit.written else None


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


def _with_expected(
    call: Call, reply: ChatReply, nonce: str, opinions: Mapping[Claim, Judgment]
) -> dict[Claim, Judgment]:
    """Return opinions with their expected scores, and log where the written one stands."""
    places = ScoreTokens(reply.text, reply.tokens, structured=reply.structured, nonce=nonce)
    with_expected = dict(opinions)
    for claim, verdict in opinions.items():
        dimension = call.dimension(claim)
        expected = places.expected(verdict.score, dimension.scale, dimension.id if call.batched else None)
        if isinstance(expected, AsWritten):
            call.log(logs.score_as_written, dimension=dimension.id, score=verdict.score, reason=expected.reason)
        else:
            with_expected[claim] = replace(verdict, expected=expected)
    return with_expected


def _timeout_failure(timeout_s: float, own_s: float) -> ProviderFailure:
    if timeout_s < own_s:
        return ProviderFailure(FailureKind.TIMEOUT, f"cut at its deadline, after {timeout_s:.3g} s")
    return ProviderFailure(FailureKind.TIMEOUT, f"no answer within {timeout_s:g} s")


def _request(call: Call, model: str, prompt: Prompt, images: Sequence[ImagePart], shared: int) -> ChatRequest:
    return ChatRequest(
        model=model,
        system=prompt.system,
        user=prompt.user,
        max_tokens=max(prompt.max_tokens, call.claims[0].room // call.most_answers),
        temperature=None if "temperature" in call.dropped else call.agent.temperature,
        params=call.agent.parameters(call.replicate),
        dropped=call.dropped,
        logprobs=call.agent.score_from == "logprobs",
        answers=call.answers,
        shared=shared,
        schema=prompt.schema,
        images=images,
        service_tier=FLEX if call.lane.road == "flex" else "",
    )


def _is_shared(call: Call) -> bool:
    """Whether other calls share this one's beginning. The schema comes first, so that only dimensions of the same scale
    do, and not those with templates of their own."""
    spec = call.job.spec
    template = spec.template_for(call.agent, call.dimensions[0])
    alike = [
        dimension
        for dimension in spec.dimensions
        if dimension.asked_about(call.item.criteria).scale == call.dimensions[0].scale
        and spec.template_for(call.agent, dimension) == template
    ]
    return (1 if call.batched else len(alike)) * (spec.replicates // call.lane.together) > 1


def _prompt(call: Call, nonce: str, provider: Provider, arranged: Sequence[str] | None) -> Prompt:
    fixed = provider.nonce_in_schema
    if call.batched:
        return batch_prompt(
            call.agent,
            dimensions_in_order(call.item, call.dimensions),
            call.shown_item,
            nonce,
            fixed_nonce=fixed,
            arranged=arranged,
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
