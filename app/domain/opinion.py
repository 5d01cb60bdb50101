"""The results of a job: one `Opinion` per unit, and one `EvaluationError` for each unit without a score.

Errors come in two kinds: `FailureKind` is what a provider's adapter, or the caller's own deadline, reports about a
single call. `ErrorKind` is the coarser kind that is recorded for the unit. `ErrorGroup` keeps the errors of a job in
bounded space: each kind with its reasons and examples.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from enum import StrEnum
from functools import partial

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class Usage(BaseModel):
    """Tokens as the provider reported them; 0 if it reported none."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    input_tokens: int = 0
    output_tokens: int = 0


class CallUsage(Usage):
    """The tokens of a whole call, in which parts of the input were read from the provider's cache or written to it, or
    a part of the output was hidden reasoning. `service_tier` is the kind of service that answered, as the provider
    names it, "" if it does not: it may be another one than was asked for, at another price."""

    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    service_tier: str = ""


class Opinion(BaseModel):
    """One judge's finding on one criterion of one item.

    `score` is null when the unit ended in an error (the reason is in the job's errors), or was not needed.
    Of a judge with `score_from: logprobs` it is the expected score, and `answer_score` the one that the judge wrote;
    where none could be computed, `score` is the written one and `answer_score` null.
    `label` is what a score means on a scale of labels or preferences; `answers` are those to a checklist's questions,
    in their order, or on the item's own criteria, null where the judge gave none. `attained` are then the lowest and
    the highest share of the attainable points that the answers allow, not cut to 0..1 as the score is
    (app/domain/dimension.py).
    `pool` is where the call was made or, if none was, where the unit was to be sent last.
    `usage` and `latency_s` are those of the call that brought the answer (a batched call's usage is
    divided among its opinions, remainder to the first); `attempts` counts calls that spent an attempt.
    `metadata` is that of the item which the job asks to `keep`. `swapped` tells whether the judge was shown a pair's
    texts in the other order, null where the item is no pair; the score is told of the item's own A and B either way.
    `not_needed`: it has no score because nobody asked for one, the judges before having settled the outcome; then there
    is no error.
    `dissent` is of a panel's chief alone: what those held whom it did not follow, and why; '' if it followed all.
    `probe` is null of an item as it is, and else what was changed in a variant of it (app/domain/variants.py): such
    opinions count in no mean, panel or agreement.
    `cached`: the opinion was given to the same question before, at this instant (ISO 8601, UTC), and no call was made
    for it; `usage`, `latency_s` and `attempts` are then 0.
    """

    model_config = ConfigDict(defer_build=True, frozen=True)

    judge: str
    criterion_id: str
    item_id: str
    replicate: int = Field(ge=0)
    swapped: bool | None = None
    score: int | float | None
    answer_score: int | None = Field(
        default=None,
        exclude_if=partial(operator.is_, None),
        description="in JSON only where `score` is an expected score: what the judge wrote",
    )
    label: str | None = None
    answers: list[bool | None] | None = None
    attained: tuple[float, float] | None = Field(
        default=None,
        exclude_if=partial(operator.is_, None),
        description="in JSON only of an item's own criteria: the lowest and highest share of its points",
    )
    argument: str
    dissent: str | None = Field(
        default=None, exclude_if=partial(operator.is_, None), description="in JSON only of a panel's chief"
    )
    cited_evidence: list[str] = Field(default_factory=list)
    model: str
    system_fingerprint: str | None = Field(
        default=None,
        exclude_if=partial(operator.is_, None),
        description="in JSON only where the provider tells it: the state of its system that answered",
    )
    pool: str = ""
    usage: Usage = Usage()
    latency_s: float = Field(default=0.0, ge=0)
    attempts: int = Field(default=1, ge=0)
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    not_needed: bool = Field(default=False, exclude_if=operator.not_, description="in JSON only where it is true")
    probe: str | None = Field(default=None, description="what was changed in a variant of the item, judged for a probe")
    cached: str | None = Field(
        default=None,
        exclude_if=partial(operator.is_, None),
        description="when it was given first, in JSON only of an opinion that was used again",
    )


class ErrorKind(StrEnum):
    """The reason why a unit has no score."""

    RATE_LIMITED = "rate_limited"  # 429, 529: the requeue budget is spent
    QUOTA_EXHAUSTED = "quota_exhausted"  # the account has no money left: terminal
    PROVIDER = "provider"  # 5xx, connection errors
    TIMEOUT = "timeout"  # LLM_CALL_TIMEOUT
    REJECTED = "rejected"  # 400, 401, 403, 404, 413, 422: asking again cannot help
    MALFORMED = "malformed"  # the answer is no opinion
    OUT_OF_TOKENS = "out_of_tokens"  # hidden reasoning took all of max_tokens
    REFUSED = "refused"  # the model refused to answer
    FILTERED = "filtered"  # the provider's content filter withheld the answer, or the question
    NOT_ASKED = "not_asked"  # the job's first units there all ended in one error: it stopped asking
    POOL_DOWN = "pool_down"  # max_pool_down: its pool was down for longer than the job waits
    CAPPED = "capped"  # max_cost, max_tokens or max_calls of its job is met
    DEADLINE = "deadline"  # unit_deadline or finish_by passed
    CANCELLED = "cancelled"
    LOST = "lost"  # the worker died with it too often, or its calls are spent
    OUTCOME_UNKNOWN = "outcome_unknown"  # spend: at_most_once, and a call may have been paid whose answer never came
    INTERNAL = "internal"


class EvaluationError(BaseModel):
    """The recorded error of one unit.

    `attempts` counts the calls that spent an attempt, `calls` all that were made for it: those that a rate limit
    refused, or whose worker died, too.
    """

    model_config = ConfigDict(defer_build=True, frozen=True)

    judge: str
    criterion_id: str
    item_id: str
    replicate: int = Field(ge=0)
    kind: ErrorKind
    message: str
    status_code: int | None = None
    attempts: int = 0
    calls: int = 0
    elapsed_s: float = Field(default=0.0, ge=0)
    probe: str | None = None


class FailureKind(StrEnum):
    """The reason why one call returned no usable answer."""

    RATE_LIMITED = "rate_limited"  # 429: this account's limit
    OVERLOADED = "overloaded"  # 529: the provider is overloaded for everybody
    UNAVAILABLE = "unavailable"  # a cheap road had no room: flex without capacity, a batch that expired; not charged
    QUOTA_EXHAUSTED = "quota_exhausted"  # 429 insufficient_quota, spend cap: terminal
    SERVER = "server"  # 408, 5xx but 529
    CONNECTION = "connection"  # refused, reset, cut in the middle
    TIMEOUT = "timeout"  # the SDK's own deadline, or the caller's total one
    REJECTED = "rejected"  # 400, 401, 403, 404, 413, 422, redirects: terminal
    MALFORMED = "malformed"  # a 200 that is no answer: HTML, too large, no content, bad JSON, no opinion
    OUT_OF_TOKENS = "out_of_tokens"  # the model stopped at max_tokens while it was reasoning
    REFUSED = "refused"  # the model said that it will not answer
    FILTERED = "filtered"  # a content filter stopped question or answer: terminal
    INTERNAL = "internal"  # a fault of this program


RATE_LIMITS = frozenset({FailureKind.RATE_LIMITED, FailureKind.OVERLOADED, FailureKind.UNAVAILABLE})
"""Failures that are the pool's fault and not the unit's: they spend the requeue budget instead of an attempt."""

TERMINAL = frozenset({FailureKind.QUOTA_EXHAUSTED, FailureKind.REJECTED, FailureKind.FILTERED})
"""Failures after which another call cannot help."""

NO_OPINION = frozenset({
    FailureKind.MALFORMED, FailureKind.OUT_OF_TOKENS, FailureKind.REFUSED, FailureKind.FILTERED,
})  # fmt: skip
"""Failures in which the provider has done its work, and may charge for it, but has given no opinion."""

UNCERTAIN = frozenset({FailureKind.TIMEOUT, FailureKind.CONNECTION, FailureKind.INTERNAL})
"""Failures after which the provider may have answered, and charged for it. An error status is taken as not charged."""

_RECORDED_AS = {
    FailureKind.RATE_LIMITED: ErrorKind.RATE_LIMITED,
    FailureKind.OVERLOADED: ErrorKind.RATE_LIMITED,
    FailureKind.UNAVAILABLE: ErrorKind.RATE_LIMITED,
    FailureKind.QUOTA_EXHAUSTED: ErrorKind.QUOTA_EXHAUSTED,
    FailureKind.SERVER: ErrorKind.PROVIDER,
    FailureKind.CONNECTION: ErrorKind.PROVIDER,
    FailureKind.TIMEOUT: ErrorKind.TIMEOUT,
    FailureKind.REJECTED: ErrorKind.REJECTED,
    FailureKind.MALFORMED: ErrorKind.MALFORMED,
    FailureKind.OUT_OF_TOKENS: ErrorKind.OUT_OF_TOKENS,
    FailureKind.REFUSED: ErrorKind.REFUSED,
    FailureKind.FILTERED: ErrorKind.FILTERED,
    FailureKind.INTERNAL: ErrorKind.INTERNAL,
}


def error_kind(failure: FailureKind) -> ErrorKind:
    """Return the kind of error recorded for a unit whose last call failed with `failure`."""
    return _RECORDED_AS[failure]


MAX_EXAMPLES = 20
MAX_REASONS = 20
EXAMPLES_A_REASON = 5
MAX_EXAMPLE_LENGTH = 500


class ErrorReason(BaseModel):
    """How many errors of a kind have the same message, and where the first one occurred."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    status_code: int | None
    message: str
    count: int
    judge: str
    criterion_id: str
    item_id: str

    @property
    def text(self) -> str:
        """The message, preceded by the HTTP status unless the message names it."""
        if self.status_code is None or re.search(rf"\bstatus {self.status_code}\b", self.message):
            return self.message
        return f"{self.status_code} {self.message}"


class JudgeErrors(BaseModel):
    """Counts a judge's units that failed with one kind of error and one HTTP status, without variants of items."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    judge: str
    status_code: int | None
    count: int


class ErrorGroup(BaseModel):
    """All errors of one kind, with messages cut to `MAX_EXAMPLE_LENGTH` characters.

    `judges` says whose they are, most first, without those of variants of items. `reasons` are the distinct messages,
    most frequent first; beyond `MAX_REASONS`, those that came first are kept. `examples` are the first few, chosen so
    that each reason has some.
    """

    model_config = ConfigDict(defer_build=True, frozen=True)

    kind: ErrorKind
    count: int
    examples: list[EvaluationError]
    reasons: list[ErrorReason] = []
    judges: list[JudgeErrors] = []


class ErrorTally:
    """Gathers the errors of one kind in bounded memory."""

    def __init__(self) -> None:
        self.examples: list[EvaluationError] = []
        self._counts: Counter[tuple[int | None, str]] = Counter()
        self._first: dict[tuple[int | None, str], EvaluationError] = {}
        self._judges: Counter[tuple[str, int | None]] = Counter()

    def add(self, error: EvaluationError) -> None:
        """Count one error."""
        error = error.model_copy(update={"message": error.message[:MAX_EXAMPLE_LENGTH]})
        reason = error.status_code, error.message
        if error.probe is None:
            self._judges[error.judge, error.status_code] += 1
        if reason in self._counts or len(self._counts) < MAX_REASONS:
            self._counts[reason] += 1
            self._first.setdefault(reason, error)
        if len(self.examples) < MAX_EXAMPLES and self._counts[reason] <= EXAMPLES_A_REASON:
            self.examples.append(error)

    def reasons(self) -> list[ErrorReason]:
        """Return the reasons, most frequent first."""
        return [
            ErrorReason(
                status_code=status, message=message, count=count, judge=self._first[status, message].judge,
                criterion_id=self._first[status, message].criterion_id, item_id=self._first[status, message].item_id,
            )
            for (status, message), count in self._counts.most_common()
        ]  # fmt: skip

    def judges(self) -> list[JudgeErrors]:
        """Return how many errors each judge has with each status, most first."""
        return [
            JudgeErrors(judge=judge, status_code=status, count=count)
            for (judge, status), count in self._judges.most_common()
        ]
