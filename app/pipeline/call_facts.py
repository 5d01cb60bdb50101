"""The facts of one call, and what is reported about it to the ledger, the log and the pool's governor.

A judge may be asked at several places (`places_of`); a place is a pool's model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic_core import to_json

from dicast.app.domain.chief import matching_opinions
from dicast.app.domain.dimension import Dimension
from dicast.app.domain.item import Item
from dicast.app.domain.job import Agent, Deployment
from dicast.app.domain.opinion import ErrorKind, EvaluationError, FailureKind, Opinion, Usage
from dicast.app.domain.panel import unswapped_score
from dicast.app.domain.plan import Lane, Stop, batch_label, place
from dicast.app.domain.probes import measured
from dicast.app.domain.scoreboard import ENDED, mark_of
from dicast.app.domain.verdict import Judgment
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import Claim, JobRecord, MessageId, Recorded, UnitResult, WriteVerdict
from dicast.app.providers.base import ChatReply, ProviderFailure
from dicast.workers.policy.calls import CallOutcome, Cost
from dicast.workers.policy.headers import read_limits

NO_ANSWER = 0
"""The status that is reported to the governor for a call that was not answered."""
SUMMARY_CHARS = 200


@dataclass(slots=True)
class Call:
    """One call's facts, from the claim to its end."""

    ref: PageRef
    token: MessageId
    job: JobRecord
    agent: Agent
    deployment: Deployment
    pool: str
    item: Item
    dimensions: Sequence[Dimension]
    claims: Sequence[Claim]
    replicate: int
    model: str = ""
    latency_s: float = 0.0
    usage: Usage = field(default_factory=Usage)
    ends_at: float = math.inf
    """The deadline of the call, on the event loop's clock."""
    probe: bool = False
    """Whether the call probes a pool that was down when the call was admitted."""
    summary: str = ""
    """The outcome, for people who look at the task. Contains no text of the item or the judge, and no key."""
    errors: list[ErrorKind] = field(default_factory=list)
    """The kinds of errors with which its units have ended. Copies of this call share the list."""
    swapped: bool | None = field(init=False)
    """Whether the judge is shown a pair's texts in the other order."""
    shown_item: Item = field(init=False)
    """The item as the judge of this call sees it."""

    def __post_init__(self) -> None:
        self.swapped = self.job.spec.is_swapped(self.replicate)
        self.shown_item = self.item.swapped() if self.swapped else self.item
        if self.item.opinions is not None:
            visible = matching_opinions(
                self.item.opinions, self.replicate, [dimension.id for dimension in self.dimensions]
            )
            self.shown_item = self.shown_item.model_copy(update={"opinions": visible})

    @property
    def item_number(self) -> int:
        return self.job.lanes[self.ref.lane].unit(self.token.position).item

    @property
    def is_chief(self) -> bool:
        """Whether the judge is the panel's chief, who sees the other judges' opinions."""
        return self.item.opinions is not None

    @property
    def label(self) -> str:
        return batch_label(self.dimensions)

    def summarize(self, text: str) -> None:
        self.summary = text if len(text) <= SUMMARY_CHARS else f"{text[: SUMMARY_CHARS - 3]}..."

    def log(self, event: Callable[..., None], dimension: str | None = None, **values: object) -> None:
        """Write one log line about this call, or about one of its dimensions."""
        event(
            dimension=dimension or self.label, agent=self.agent.name, job=self.ref.job, item=self.item.id,
            pool=self.pool, unit=f"{self.ref.lane}.{self.ref.page}.{self.token}", **values,
        )  # fmt: skip

    def scored_result(self, claim: Claim, dimension: Dimension, verdict: Judgment, usage: Usage) -> UnitResult:
        """Return a unit's opinion in the form that the ledger stores."""
        score = unswapped_score(verdict.score, swapped=self.swapped)
        opinion = Opinion(
            judge=self.agent.name,
            criterion_id=dimension.id,
            item_id=self.item.id,
            replicate=self.replicate,
            swapped=self.swapped,
            score=score,
            label=dimension.scale.label(score),
            answers=None if verdict.answers is None else list(verdict.answers),
            argument=verdict.argument,
            dissent=verdict.dissent,
            cited_evidence=list(verdict.cited_evidence),
            model=self.model,
            pool=self.pool,
            usage=usage,
            latency_s=round(self.latency_s, 4),
            attempts=claim.attempts + 1,
            metadata=kept_metadata(self.job, self.item),
            probe=self.item.probe,
        )
        result = UnitResult(claim.position, claim.fence, payload(opinion, None), scored=True)
        return self._with_mark(result, mark_of(score, dimension.scale.min)) if self.job.keeps_scoreboard else result

    def error_result(
        self, claim: Claim, dimension: Dimension, kind: ErrorKind, message: str, argument: str, *,
        attempts: int, calls: int, elapsed_s: float, status_code: int | None, model: str,
    ) -> UnitResult:  # fmt: skip
        """Return a unit's error in the form that the ledger stores, and note its kind."""
        self.errors.append(kind)
        content = unscored(
            self.job, self.agent, dimension, self.item, self.replicate, kind=kind, message=message, argument=argument,
            attempts=attempts, calls=calls, elapsed_s=elapsed_s, status_code=status_code, model=model,
            pool=self.pool, latency_s=self.latency_s,
        )  # fmt: skip
        result = UnitResult(claim.position, claim.fence, content, scored=False)
        return self._with_mark(result, ENDED) if self.job.keeps_scoreboard else result

    def _with_mark(self, result: UnitResult, mark: int) -> UnitResult:
        """Add the place and the mark that the job's score board needs."""
        return result._replace(place=self.job.place(self.job.lanes[self.ref.lane], result.position), mark=mark)


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
    """Return what the pool's governor learns from a failure, or None if the failure is this program's own.

    An exhausted account is reported as 402, since waiting does not help, and a rate limit or an overload as 429 or 529,
    whatever status code it arrived with.
    """
    if failure.kind is FailureKind.INTERNAL:
        return None
    status = _REPORTED_STATUS.get(failure.kind, failure.status_code or NO_ANSWER)
    readings = read_limits(failure.headers, wall_s)
    return CallOutcome(status, readings=readings, reporter=reporter, error=failure.message)


def failure_counters(failure: ProviderFailure) -> dict[str, int]:
    """Return the job's counters for a failed call. What a call without an answer has cost is unknown."""
    unanswered = failure.reached and failure.kind in {FailureKind.TIMEOUT, FailureKind.CONNECTION}
    return {
        "calls": 1,
        "timeouts": int(failure.kind is FailureKind.TIMEOUT),
        "calls_without_answer": int(unanswered),
    }


def payload(opinion: Opinion, error: EvaluationError | None) -> bytes:
    """Serialise the outcome of a unit for the ledger, without null values (see `opinion_of`)."""
    # Not orjson: its result keeps the whole 4 KB buffer alive, and the recorder keeps results for a while.
    return to_json({"opinion": opinion} if error is None else {"opinion": opinion, "error": error}, exclude_none=True)


def opinion_of(result: Mapping[str, Any]) -> Opinion:
    """Return the opinion of a parsed `payload`. It is not validated again."""
    return Opinion.model_construct(**{"score": None, **result["opinion"]})


class Models(Protocol):
    """Knows the pools' models (see `dicast.app.pipeline.pools.ServedPools`)."""

    def model(self, deployment: Deployment) -> str: ...


class Stops(Protocol):
    """Knows where jobs have stopped asking (see `dicast.app.ledger.troubles.StopStore`)."""

    async def stops(self, job: JobRecord) -> Mapping[str, Stop]: ...


def places_of(job: JobRecord, lane: Lane, agent: int, models: Models) -> list[str]:
    """Return the places where a judge may be asked, in the order of its deployments."""
    choices = zip(lane.pools, job.spec.agents[agent].choices, strict=True)
    return [place(pool, models.model(deployment)) for pool, deployment in choices]


@dataclass(frozen=True, slots=True)
class NextSteps:
    """What the task has to do next.

    `counts` is False while the unit has not ended: the chord must not count it yet. `summary` is the outcome, for
    people. With `retry` the same message comes again at its time. `errors` are the kinds of errors with which the units
    ended.
    """

    counts: bool
    follow_ups: Sequence[MessageId] = ()
    plan: bool = False
    gather: bool = False
    summary: str = "nothing to do"
    retry: bool = False
    errors: Sequence[ErrorKind] = ()

    @classmethod
    def after(cls, recorded: Recorded | None, *, counts: bool = True) -> NextSteps:
        """Return the steps that follow from the ledger's answer to a write; None means that nothing was written."""
        if recorded is None:
            return cls(counts)
        # The chord counts the task with the newest claim only.
        counts = counts and not {WriteVerdict.STALE, WriteVerdict.GONE}.issuperset(recorded.written)
        return cls(counts, plan=recorded.plan, gather=recorded.gather)


TASK_END = "task_end"
"""The name under which a request passes its `TaskEnd` to its task."""


@dataclass(slots=True)
class TaskEnd:
    """Carries the outcome of a unit's task to its request. `steps` is None until the task has ended."""

    steps: NextSteps | None = None
