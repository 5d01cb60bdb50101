"""The facts of one call, how it ended, and what is reported about it to the ledger, the log and the pool's governor.

A judge may be asked at several places (`places_of`); a place is a pool's model.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any, Protocol

from pydantic_core import to_json

from dicast.app.domain.cost import DAY_S, MoneyBudget
from dicast.app.domain.dimension import Dimension
from dicast.app.domain.escalation import matching_opinions
from dicast.app.domain.item import Item
from dicast.app.domain.opinion import CallUsage, ErrorKind, EvaluationError, FailureKind, Opinion, Usage
from dicast.app.domain.panel import Agent, Deployment, unswapped_score
from dicast.app.domain.plan import DroppedParameter, Lane, Stop, batch_label, place
from dicast.app.domain.price import Bound, Place
from dicast.app.domain.probes import measured
from dicast.app.domain.scoreboard import ENDED, mark_of
from dicast.app.domain.variants import REVERSED
from dicast.app.domain.verdict import Judgment
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import Claim, JobRecord, MessageId, Recorded, UnitResult, WriteVerdict
from dicast.app.providers.base import ChatReply, ProviderFailure
from dicast.workers.policy.calls import NO_CONTENT, NOTHING, CallOutcome, Cost
from dicast.workers.policy.headers import read_limits

NO_ANSWER = 0
"""The status that is reported to the governor for a call that was not answered."""
SUMMARY_CHARS = 200


@dataclass(frozen=True)
class Call:
    """One call's facts, as they are when its units are claimed."""

    ref: PageRef
    token: MessageId
    job: JobRecord
    agent: Agent
    deployment: Deployment
    pool: str
    item: Item
    dimensions: Sequence[Dimension]
    claims: Sequence[Claim]
    ends_at: float = math.inf
    """The deadline of the call, on the event loop's clock."""
    probe: bool = False
    """Whether the call probes a pool that was down when the call was admitted."""
    book: str = ""
    """Where the job's books count the call: its agent and deployment (app/domain/cost.py)."""
    place: Place | None = None
    """Where it is made, with its price as of the job's submission; None: the job has no prices."""
    road: str = "online"
    """How it gets there: online, batch or flex."""
    dropped: frozenset[str] = frozenset()
    """The parameters that its model has refused before."""
    budgets: Sequence[MoneyBudget] = ()
    """Those that it must keep."""

    @cached_property
    def by_replicate(self) -> Mapping[int, Sequence[Claim]]:
        """The claims of each replicate, in order; of several replicates, each is one answer to the same question."""
        claims: dict[int, list[Claim]] = {}
        for claim in self.claims:
            claims.setdefault(self.lane.unit(claim.position).replicate, []).append(claim)
        return claims

    @property
    def most_answers(self) -> int:
        """The number of answers that its message asks for if none of its units has ended."""
        return self.lane.together if self.token.batch else 1

    @cached_property
    def answers(self) -> int:
        """The number of answers that the call asks for."""
        return len(self.by_replicate) if self.lane.together > 1 else 1

    @cached_property
    def replicate(self) -> int:
        """The first replicate that the call asks for."""
        first = self.claims[0].position if self.claims else self.token.position
        return self.lane.unit(first).replicate

    def replicate_of(self, claim: Claim) -> int:
        """Return the replicate of a claimed unit."""
        return self.lane.unit(claim.position).replicate

    @cached_property
    def batched(self) -> bool:
        """True if the call asks about all dimensions of its judge at once."""
        return self.token.batch and self.lane.batched

    @cached_property
    def swapped(self) -> bool | None:
        """Whether the judge is shown a pair's texts in the other order."""
        return self.job.spec.is_swapped(self.replicate)

    @cached_property
    def shown_item(self) -> Item:
        """The item as the judge of this call sees it."""
        if not self.swapped and self.item.opinions is None:
            return self.item
        return shown_item(self.item, self.dimensions, self.replicate, swapped=bool(self.swapped))

    @cached_property
    def lane(self) -> Lane:
        return self.job.lanes[self.ref.lane]

    @property
    def item_number(self) -> int:
        return self.lane.unit(self.token.position).item

    @property
    def is_chief(self) -> bool:
        """Whether the judge is the panel's chief, who sees the other judges' opinions."""
        return self.item.opinions is not None

    @property
    def label(self) -> str:
        return batch_label(self.dimensions)

    def dimension(self, claim: Claim) -> Dimension:
        """Return the dimension that a claimed unit asks about."""
        if len(self.dimensions) == 1 and not self.batched:  # else the unit may be one that gets no call
            return self.dimensions[0]
        dimension = self.job.spec.dimensions[self.lane.unit(claim.position).dimension]
        return dimension if self.item.criteria is None else dimension.asked_about(self.item.criteria)

    def of(self, claims: Sequence[Claim]) -> Call:
        """Return the same call, of some of its units alone."""
        return replace(self, claims=claims, dimensions=asked_dimensions(self.job, self.lane, self.item, claims))

    def log(self, event: Callable[..., None], dimension: str | None = None, **values: object) -> None:
        """Write one log line about this call, or about one of its dimensions."""
        event(
            dimension=dimension or self.label, agent=self.agent.name, job=self.ref.job, item=self.item.id,
            pool=self.pool, unit=f"{self.ref.lane}.{self.ref.page}.{self.token}", **values,
        )  # fmt: skip

    def scored_result(
        self, claim: Claim, dimension: Dimension, verdict: Judgment, usage: Usage, answer: Answered,
        question: str | None = None,
    ) -> UnitResult:  # fmt: skip
        """Return a unit's opinion in the form that the ledger stores; `usage` is its share of the answer's, `question`
        the key under which the opinion is to be kept (app/pipeline/kept_opinions.py)."""
        score = unswapped_score(verdict.score, swapped=True) if self.swapped else verdict.score
        is_expected = verdict.expected is not None
        opinion = Opinion(
            judge=self.agent.name,
            criterion_id=dimension.id,
            item_id=self.item.id,
            replicate=self.replicate if self.answers == 1 else self.replicate_of(claim),
            swapped=self.swapped,
            score=verdict.expected if is_expected else score,
            answer_score=verdict.score if is_expected else None,
            label=dimension.scale.label(score),
            answers=None if verdict.answers is None else list(verdict.answers),
            attained=verdict.attained,
            argument=verdict.argument,
            dissent=verdict.dissent,
            cited_evidence=list(verdict.cited_evidence),
            model=answer.model,
            system_fingerprint=answer.fingerprint or None,
            pool=self.pool,
            usage=usage,
            latency_s=round(answer.latency_s, 4),
            attempts=claim.attempts + 1,
            metadata=kept_metadata(self.job, self.item),
            probe=self.item.probe,
        )
        result = UnitResult(claim.position, claim.fence, payload(opinion, None, question), scored=True)
        return self._with_mark(result, mark_of(score, dimension.scale.min)) if self.job.keeps_scoreboard else result

    def error_result(
        self, claim: Claim, kind: ErrorKind, message: str, argument: str, *, attempts: int, calls: int,
        elapsed_s: float, status_code: int | None, model: str, latency_s: float = 0.0,
    ) -> UnitResult:  # fmt: skip
        """Return a unit's error in the form that the ledger stores."""
        content = unscored(
            self.job, self.agent, self.dimension(claim), self.item, self.replicate_of(claim),
            kind=kind, message=message, argument=argument, attempts=attempts, calls=calls, elapsed_s=elapsed_s,
            status_code=status_code, model=model, pool=self.pool, latency_s=latency_s,
        )  # fmt: skip
        return self.unscored_result(claim, content)

    def unscored_result(self, claim: Claim, content: bytes) -> UnitResult:
        """Return the result of a unit that ends with an error, from its payload."""
        result = UnitResult(claim.position, claim.fence, content, scored=False)
        return self._with_mark(result, ENDED) if self.job.keeps_scoreboard else result

    def _with_mark(self, result: UnitResult, mark: int) -> UnitResult:
        """Add the place and the mark that the job's score board needs."""
        return result._replace(place=self.job.place(self.lane, result.position), mark=mark)


def asked_dimensions(job: JobRecord, lane: Lane, item: Item, claims: Sequence[Claim]) -> list[Dimension]:
    """Return the dimensions of claimed units of one item, each once, in order, as its judge is asked about them."""
    if len(claims) == 1:
        dimensions = [job.spec.dimensions[lane.unit(claims[0].position).dimension]]
    else:
        numbers = dict.fromkeys(lane.unit(claim.position).dimension for claim in claims)
        dimensions = [job.spec.dimensions[number] for number in numbers]
    return dimensions if item.criteria is None else [d.asked_about(item.criteria) for d in dimensions]


def shown_item(item: Item, dimensions: Sequence[Dimension], replicate: int, *, swapped: bool) -> Item:
    """Return an item as its judge sees it: a pair in its order, and for a chief with the others' opinions of this round
    on these dimensions."""
    item_in_order = item.swapped() if swapped else item
    if item.opinions is None:
        return item_in_order
    names = [dimension.id for dimension in dimensions]
    return item_in_order.model_copy(update={"opinions": matching_opinions(item.opinions, replicate, names)})


def dimensions_in_order(item: Item, dimensions: Sequence[Dimension]) -> Sequence[Dimension]:
    """Return the dimensions of a call in the order in which its judge reads them."""
    return dimensions[::-1] if item.probe == REVERSED else dimensions


# ---------------------------------------------------------------------- how a call ended
class Delay(Enum):
    """Why a call is not made now; its units come again, and nothing counts as paid. The text is for people."""

    NO_LEASE = "waits for a lease"
    SHORT_LEASE = "waits for a longer lease"
    FORBIDDEN = "waits: it was revoked, or its worker stops"
    NO_RENDERER = "waits for the process that renders templates"
    NO_MONEY = "waits for money"
    NO_ROOM = "waits for a larger part of the job's cap"
    WARMING = "waits until its item's text is in the provider's cache"
    ELSEWHERE = "goes elsewhere"
    ONE_BY_ONE = "asked one by one"
    NEXT_BATCH = "waits for the next batch"
    ONLINE = "goes online, since its batch might end too late"


class NoCall(Enum):
    """Why a unit ends without a call: the kind of its error, and the words for people. A unit that is not needed ends
    without an error. For `STOPPED` and `NO_POOL`, kind and words are those of the stop and of the rejection."""

    CANCELLED = ErrorKind.CANCELLED, "the job was cancelled"
    REVOKED = ErrorKind.CANCELLED, "it was revoked"
    POISON = ErrorKind.LOST, "the workers that tried it died"
    SPENT = ErrorKind.LOST, "all calls that may be paid for it were made, and none brought a result"
    CAPPED = ErrorKind.CAPPED, "its job has met its cap, or a budget is spent in total"
    EXPIRED = ErrorKind.DEADLINE, "its deadline has passed"
    UNKNOWN = ErrorKind.OUTCOME_UNKNOWN, "its worker died during a call that may have been paid for"
    STOPPED = ErrorKind.NOT_ASKED, "the job has stopped asking there"
    NO_POOL = ErrorKind.REJECTED, "no worker knows its pool"
    NO_OPINIONS = ErrorKind.NOT_ASKED, "no other judge has an opinion"
    NOT_NEEDED = ErrorKind.NOT_ASKED, "the judges before had settled it"
    NOT_KEPT = ErrorKind.NOT_ASKED, "the cache has no opinion on it, and the job makes no calls (cache: only)"

    @property
    def kind(self) -> ErrorKind:
        return self.value[0]

    @property
    def words(self) -> str:
        return self.value[1]


@dataclass(frozen=True, slots=True)
class Answered:
    """The provider has answered. Units of the call that are not in `opinions` were left out of a batch, or their part
    of it was refused."""

    opinions: Mapping[Claim, Judgment]
    model: str
    usage: Usage
    latency_s: float
    most: Bound | None = None
    """What the call may have cost, where the provider does not tell its usage."""
    fingerprint: str = ""
    ignored: str = ""
    """The parameter that the provider has ignored, so that units which it would have answered were not asked."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The call failed, or could not be made at all (`was_made`). An answer that was refused has been paid for with
    `usage`; without it the call has cost nothing, or at `most` so much."""

    failure: ProviderFailure
    latency_s: float = 0.0
    usage: Usage | None = None
    was_made: bool = True
    most: Bound | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """The open call was cut without an answer: its worker stops, has to hand its units back, or they were revoked.
    `cancelled` is what ended the task, if it was not the call alone that was cut. It may have cost at `most` so
    much."""

    latency_s: float
    cancelled: asyncio.CancelledError | None = None
    most: Bound | None = None


@dataclass(frozen=True, slots=True)
class NotMade:
    """The call is not made now. The same message comes again after `delay_s`, or each unit by itself."""

    why: Delay
    delay_s: float = 0.0
    words: str = ""
    input_tokens: int = 0
    """What must be reserved for the call, where less was."""


@dataclass(frozen=True, slots=True)
class Unasked:
    """The call is not made, and its units end."""

    why: NoCall
    kind: ErrorKind
    words: str
    status_code: int | None = None
    model: str = ""
    pool: str = ""

    @classmethod
    def because(cls, why: NoCall, *, model: str = "", pool: str = "", detail: str = "") -> Unasked:
        """Return the end for a reason that needs no more than the pool's state as a detail, if that is known."""
        return cls(why, why.kind, "; ".join(filter(None, (why.words, detail))), model=model, pool=pool)

    @classmethod
    def stopped(cls, stop: Stop) -> Unasked:
        """Return the end of units of a job that has stopped asking at a place."""
        return cls(NoCall.STOPPED, stop.kind, stop.reason, stop.status_code, stop.model, stop.pool)

    @classmethod
    def rejected(cls, failure: ProviderFailure, model: str, pool: str) -> Unasked:
        """Return the end of units whose pool no worker knows."""
        return cls(NoCall.NO_POOL, ErrorKind.REJECTED, failure.message, failure.status_code, model, pool)

    @property
    def message(self) -> str:
        """The message of the error that is recorded."""
        return (
            f"not asked: {self.words}"
            if self.why in (NoCall.STOPPED, NoCall.NO_OPINIONS, NoCall.NOT_KEPT)
            else self.words
        )


Outcome = Answered | Failed | Cut | NotMade | Unasked
"""How a call whose units are claimed has ended: all that is needed to settle them."""


# ---------------------------------------------------------------------- what is stored
def unasked_payload(
    job: JobRecord, lane: Lane, position: int, item: Item, unasked: Unasked, *, attempts: int = 0, calls: int = 0,
    elapsed_s: float = 0.0,
) -> bytes:  # fmt: skip
    """Return the result of a unit that ends without a call. `attempts` and `calls` were made before, within
    `elapsed_s`; there are none if the unit was not even published."""
    unit = lane.unit(position)
    agent, dimension = job.spec.agents[unit.agent], job.spec.dimensions[unit.dimension]
    if unasked.why is not NoCall.NOT_NEEDED:
        return unscored(
            job, agent, dimension, item, unit.replicate, kind=unasked.kind, message=unasked.message,
            argument=f"Not evaluated: {unasked.words}", attempts=attempts, calls=calls, elapsed_s=elapsed_s,
            status_code=unasked.status_code, model=unasked.model, pool=unasked.pool,
        )  # fmt: skip
    opinion = Opinion(
        judge=agent.name,
        criterion_id=dimension.id,
        item_id=item.id,
        replicate=unit.replicate,
        swapped=job.spec.is_swapped(unit.replicate),
        score=None,
        not_needed=True,
        probe=item.probe,
        argument=f"Not asked: {unasked.words}",
        model="",
        attempts=0,
        metadata=kept_metadata(job, item),
    )
    return payload(opinion, None)


def unscored(
    job: JobRecord, agent: Agent, dimension: Dimension, item: Item, replicate: int, *,
    kind: ErrorKind, message: str, argument: str, attempts: int, calls: int, elapsed_s: float, status_code: int | None,
    model: str, pool: str = "", latency_s: float = 0.0,
) -> bytes:  # fmt: skip
    """Return the payload of a unit's error, together with an opinion without a score."""
    unit: dict[str, Any] = {
        "judge": agent.name,
        "criterion_id": dimension.id,
        "item_id": item.id,
        "replicate": replicate,
        "attempts": attempts,
        "probe": item.probe,
    }
    error = EvaluationError(
        **unit, kind=kind, message=message, status_code=status_code, calls=calls, elapsed_s=round(elapsed_s, 3)
    )
    opinion = Opinion(
        **unit,
        swapped=job.spec.is_swapped(replicate),
        score=None,
        argument=argument,
        model=model,
        pool=pool,
        latency_s=round(latency_s, 4),
        metadata=kept_metadata(job, item),
    )
    return payload(opinion, error)


def kept_metadata(job: JobRecord, item: Item) -> dict[str, Any]:
    """Return the part of the item's metadata that is stored with its opinions."""
    metadata = {name: item.metadata[name] for name in job.spec.keep if name in item.metadata}
    return metadata | measured(item, job.spec.probes) if job.spec.probes else metadata


_REPORTED_STATUS = {FailureKind.QUOTA_EXHAUSTED: 402, FailureKind.RATE_LIMITED: 429, FailureKind.OVERLOADED: 529}


def outcome_of_reply(reply: ChatReply, reporter: str, wall_s: float) -> CallOutcome:
    """Return what the pool's governor learns from an answer; `wall_s` is Unix time."""
    used = Cost(1.0, reply.usage.input_tokens, reply.usage.output_tokens)
    return CallOutcome(200, used, read_limits(reply.headers, wall_s), reporter)


def outcome_of_failure(failure: ProviderFailure, reporter: str, wall_s: float) -> CallOutcome | None:
    """Return what the pool's governor learns from a failure, or None if the failure is this program's own, or of a
    cheap road that had no room, which says nothing about the pool's limits.

    An exhausted account is reported as 402, since waiting does not help, and a rate limit or an overload as 429 or 529,
    whatever status code it arrived with. A success that holds no answer and has used no tokens is reported as 204: no
    model has seen the call.
    """
    if failure.kind in (FailureKind.INTERNAL, FailureKind.UNAVAILABLE):
        return None
    status = _REPORTED_STATUS.get(failure.kind, failure.status_code or NO_ANSWER)
    readings = read_limits(failure.headers, wall_s)
    usage = failure.usage
    if failure.kind is FailureKind.MALFORMED and status == 200 and usage is None:
        status = NO_CONTENT
    used = NOTHING if usage is None else Cost(1.0, usage.input_tokens, usage.output_tokens)
    return CallOutcome(status, used, readings, reporter, failure.message)


def failure_counters(failure: ProviderFailure) -> dict[str, int]:
    """Return the job's counters for a failed call. What a call without an answer has cost is unknown."""
    unanswered = failure.reached and failure.kind in {FailureKind.TIMEOUT, FailureKind.CONNECTION}
    return {
        "calls": 1,
        "timeouts": int(failure.kind is FailureKind.TIMEOUT),
        "calls_without_answer": int(unanswered),
    }


def call_counters(call: Call, usage: Usage | None, most: Bound | None) -> dict[str, int]:
    """Return the job's counters for the tokens and the money of a call that was made.

    A call with neither `usage` nor `most` has cost nothing. An answer that does not tell its tokens has cost an unknown
    amount, as has a call without an answer.
    """
    book, place = f"{call.book}{int(time.time() // DAY_S)}:", call.place
    if usage is not None and (usage.input_tokens or usage.output_tokens):
        counters = {
            "tokens_in": usage.input_tokens, "tokens_out": usage.output_tokens, f"{book}calls": 1,
            f"{book}in": usage.input_tokens, f"{book}out": usage.output_tokens,
        }  # fmt: skip
        if isinstance(usage, CallUsage):
            parts = {
                "cached": usage.cached_input_tokens, "written": usage.cache_write_tokens,
                "reasoning": usage.reasoning_tokens,
            }  # fmt: skip
            counters |= {f"{book}{name}": tokens for name, tokens in parts.items() if tokens}
        if place is not None and place.price is not None:
            tier = usage.service_tier if isinstance(usage, CallUsage) else ""
            price = place.price_by(call.road, tier)
            assert price is not None
            counters["spent"] = counters[f"{book}spent"] = price.cost(usage)
        return counters
    counters = {f"{book}calls": 1}
    if most is not None:
        tokens = most.input_tokens + most.output_tokens
        counters |= {f"{book}unknown_calls": 1, f"{book}unknown_tokens": tokens, "unknown_tokens": tokens}
        if place is not None and place.price is not None:
            counters["unknown"] = counters[f"{book}unknown"] = most.cost(place.highest_by(call.road))
    return counters


def payload(opinion: Opinion, error: EvaluationError | None, question: str | None = None) -> bytes:
    """Serialise the outcome of a unit for the ledger, without null values (see `opinion_of`)."""
    # Not orjson: its result keeps the whole 4 KB buffer alive, and the recorder keeps results for a while.
    content: dict[str, Any] = {"opinion": opinion}
    if error is not None:
        content["error"] = error
    if question is not None:
        content["question"] = question
    return to_json(content, exclude_none=True)


def opinion_of(result: Mapping[str, Any]) -> Opinion:
    """Return the opinion of a parsed `payload`. It is not validated again."""
    return Opinion.model_construct(**{"score": None, **result["opinion"]})


class Models(Protocol):
    """Knows the pools' models (see `dicast.app.pipeline.pools.ServedPools`)."""

    def model(self, deployment: Deployment) -> str: ...


class AskedPlaces(Models, Protocol):
    """Knows where a judge is asked, and how (see `dicast.app.pipeline.pools.ServedPools`)."""

    def asked_at(self, deployment: Deployment) -> str:
        """Return what distinguishes a place's requests from others', '' for a pool that this worker does not know."""


class Stops(Protocol):
    """Knows where jobs have stopped asking (see `dicast.app.ledger.troubles.StopStore`)."""

    async def stops(self, job: JobRecord) -> Mapping[str, Stop]: ...
    async def dropped(self, job: JobRecord) -> list[DroppedParameter]: ...


def places_of(job: JobRecord, lane: Lane, agent: int, models: Models) -> list[str]:
    """Return the places where a judge may be asked, in the order of its deployments."""
    choices = zip(lane.pools, job.spec.agents[agent].choices, strict=True)
    return [place(pool, models.model(deployment)) for pool, deployment in choices]


NOTHING_TO_DO = "nothing to do"


@dataclass(frozen=True, slots=True)
class NextSteps:
    """What the task has to do next.

    `counts` is False while the unit has not ended: the chord must not count it yet. `summary` is the outcome, for
    people; it contains no text of the item or the judge, and no key. With `retry` the same message comes again at its
    time. `errors` are the kinds of errors with which the units ended, and `failure` puts them into words.
    """

    counts: bool
    follow_ups: Sequence[MessageId] = ()
    plan: bool = False
    gather: bool = False
    summary: str = NOTHING_TO_DO
    retry: bool = False
    errors: Sequence[ErrorKind] = ()
    failure: str = ""

    @classmethod
    def after(cls, recorded: Recorded, summary: str, errors: Sequence[ErrorKind] = (), failure: str = "") -> NextSteps:
        """Return the steps that follow from the ledger's answer to a write."""
        # The chord counts the task with the newest claim only.
        counts = not {WriteVerdict.STALE, WriteVerdict.GONE}.issuperset(recorded.written)
        return cls(
            counts, plan=recorded.plan, gather=recorded.gather, summary=shortened(summary), errors=errors,
            failure=shortened(failure) if failure else "",
        )  # fmt: skip

    def following(self, earlier: NextSteps) -> NextSteps:
        """Return these steps of a message together with those of a write before, for others of its units."""
        words = [steps.summary for steps in (earlier, self) if steps.summary != NOTHING_TO_DO]
        return replace(
            self,
            plan=self.plan or earlier.plan,
            gather=self.gather or earlier.gather,
            summary=shortened("; ".join(words)) or NOTHING_TO_DO,
            errors=(*earlier.errors, *self.errors),
            failure=shortened("; ".join(filter(None, (earlier.failure, self.failure)))),
        )


def shortened(text: str) -> str:
    """Return a summary, cut to `SUMMARY_CHARS`."""
    return text if len(text) <= SUMMARY_CHARS else f"{text[: SUMMARY_CHARS - 3]}..."


TASK_END = "task_end"
"""The name under which a request passes its `TaskEnd` to its task."""


@dataclass(slots=True)
class TaskEnd:
    """Carries the outcome of a unit's task to its request. `steps` is None until the task has ended."""

    steps: NextSteps | None = None
