"""Batch APIs: thousands of requests handed over at once, answered within a day, at half the price.

A unit has the same request and the same way to read its answer, whether it is asked online or in a batch: `body`
returns what the online call would send, and `read` reads a result as the online call reads its response.

Neither API has an idempotency key. A batch is therefore marked with an **identity** that its creator has chosen and
written down before, and `find` looks for a batch with that identity when the answer to `create` got lost. OpenAI keeps
the identity in the batch's metadata. Anthropic keeps no metadata, so that there it is known only from the results'
custom ids, once the batch has ended; until then `find` goes by time and number. Custom ids carry it at both.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator, Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from dicast.app.providers.base import ChatReply, ChatRequest, ProviderFailure
from dicast.errors import DicastError

SEPARATOR = "_"
IDENTITY = re.compile(r"[a-zA-Z0-9-]{1,23}")
"""What an identity may look like. It has no underscore, which separates it from a request's own id."""
CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
"""What a request's own id may look like: with the identity before it, it fits into Anthropic's 64 characters."""
SETTLED_S = 120.0
"""How long after a lost answer to `create` the batch may still turn up in the provider's list."""
CLOCK_SKEW_S = 300.0
"""How far the provider's clock may be from this machine's, where a batch is known by its time."""
LOOK_BACK_S = 86_400.0
"""How far back a batch is looked for that is known by its identity: clocks that are off by time zones do no harm."""


class BatchState(StrEnum):
    """What a batch is doing, in one vocabulary for both APIs."""

    VALIDATING = "validating"
    RUNNING = "running"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    ENDED = "ended"
    FAILED = "failed"  # refused as a whole after it was created: nothing was answered, nothing is billed
    EXPIRED = "expired"  # some requests were not made in time; the others have results, and are billed
    CANCELLED = "cancelled"  # as above

    @property
    def is_over(self) -> bool:
        """Whether the batch never changes again, so that its results may be fetched."""
        return self in (BatchState.ENDED, BatchState.FAILED, BatchState.EXPIRED, BatchState.CANCELLED)


class BatchCounts(NamedTuple):
    """How many requests a batch has, and what became of them. OpenAI counts expired and cancelled ones nowhere;
    Anthropic counts all but `processing` only when the batch has ended."""

    total: int = 0
    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    expired: int = 0
    cancelled: int = 0


class BatchError(NamedTuple):
    """Tells why a batch failed as a whole. `line` is the request that is to blame, counted from 1, where one is."""

    code: str
    message: str
    line: int | None = None


QUEUE_FULL = "token_limit_exceeded"
"""The code of a batch that failed because too many tokens were queued for its model: to be tried again later."""


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """A batch as the provider tells of it. Times are Unix seconds. `identity` is None where it cannot be known yet, and
    "" where the batch is somebody else's. `sources` are where its results are; empty until it is over, and where it has
    none."""

    id: str
    state: BatchState
    created_at: float
    identity: str | None = None
    counts: BatchCounts = BatchCounts()
    errors: tuple[BatchError, ...] = ()
    ended_at: float | None = None
    expires_at: float | None = None
    sources: tuple[str, ...] = ()

    @property
    def met_full_queue(self) -> bool:
        """Whether it failed because the account's queue of tokens was full."""
        return self.state is BatchState.FAILED and any(error.code == QUEUE_FULL for error in self.errors)


class BatchLimits(NamedTuple):
    """The most that one batch may hold. `bytes` are those of the whole upload, ids and wrapping included."""

    requests: int
    bytes: int
    one_model: bool


class BatchRequest(NamedTuple):
    """One request of a batch. `custom_id` matches `CUSTOM_ID` and is unique in the batch; `body` is what `body`
    returned for the unit's question."""

    custom_id: str
    body: bytes


class RequestFate(StrEnum):
    """Tells what became of one request of a batch."""

    ANSWERED = "answered"  # it was made, and has a response: an answer, which is billed, or an error, which is not
    EXPIRED = "expired"  # it was not made in time, and is not billed
    CANCELLED = "cancelled"  # the same, since the batch was cancelled


class BatchResult(NamedTuple):
    """One line of a batch's results. `line` is the line as it came."""

    custom_id: str
    fate: RequestFate
    line: bytes


class UnusableBatch(DicastError, ValueError):
    """A batch that must not be sent: empty, too large, of several models where one is allowed, with an id that is used
    twice or cannot be used. Nothing was sent."""

    problem = "unusable-batch"


class CreateFailed(ProviderFailure):
    """The provider did not confirm a batch. `uncertain`: it may exist all the same, and then is billed, so that `find`
    must have looked for it before anything of it is sent again."""

    def __init__(self, failure: ProviderFailure, *, uncertain: bool) -> None:
        super().__init__(
            failure.kind, failure.message, status_code=failure.status_code, retry_after_s=failure.retry_after_s,
            headers=failure.headers, reached=failure.reached, ended=failure.ended,
        )  # fmt: skip
        self.uncertain = uncertain


class UndecidedBatch(DicastError):
    """Several running batches may be the one that was looked for: look again when one of `ids` has ended."""

    problem = "undecided-batch"

    def __init__(self, ids: Collection[str]) -> None:
        super().__init__(f"one of these batches may be the one that was looked for: {', '.join(sorted(ids))}")
        self.ids = tuple(sorted(ids))


class ForeignBatch(DicastError):
    """A batch was adopted by its time and number, and its results belong to another. None was yielded."""

    problem = "foreign-batch"


class DamagedResults(DicastError):
    """The results of a batch were not all sound; those that were have been yielded before.

    `cut`: they broke off, and fetching them again may bring the rest. Otherwise `garbage` lines could not be read,
    `duplicates` repeated an id, of which the first was yielded, and `missing` requests have no result although they
    were answered or are told to have ended: fetching again brings nothing else, and the calls may have been paid for.
    """

    problem = "damaged-results"

    def __init__(self, *, cut: bool, garbage: int = 0, duplicates: int = 0, missing: int = 0) -> None:
        faults = {"lines that cannot be read": garbage, "ids that came twice": duplicates, "missing": missing}
        text = ", ".join(f"{name}: {number}" for name, number in faults.items() if number)
        super().__init__(f"the results {'broke off' if cut else 'are damaged'}{': ' if text else ''}{text}")
        self.cut, self.garbage, self.duplicates, self.missing = cut, garbage, duplicates, missing


class BatchApi(Protocol):
    """The batches of one account at one provider, on one event loop.

    Each verb makes its HTTP calls once: retries, waits and bookkeeping are the caller's. All raise `ProviderFailure` in
    the classes of online calls.
    """

    limits: BatchLimits

    def body(self, request: ChatRequest) -> bytes:
        """Return the request as the online call would send it."""
        ...

    def read(self, result: BatchResult, request: ChatRequest) -> ChatReply:
        """Read the answer to a request, which must be the one that `body` was made of.

        Raises `ProviderFailure` as the online call would. A request that was not made, because the batch expired or was
        cancelled, is UNAVAILABLE: it was free of charge. Headers about limits are empty: batches have limits of their
        own.
        """
        ...

    async def create(self, requests: AsyncIterable[BatchRequest], identity: str) -> BatchStatus:
        """Hand over a batch. The requests are written to a temporary file on the way, and never all in memory.

        Raises `UnusableBatch` before anything is sent, and `CreateFailed`. If it is cut or its process dies, that
        is as an uncertain failure.
        """
        ...

    async def get(self, batch_id: str) -> BatchStatus:
        """Return a batch as it is now."""
        ...

    def list(self, since: float) -> AsyncIterator[BatchStatus]:
        """Yield the account's batches that were created at `since`, Unix seconds, or later, newest first."""
        ...

    async def find(
        self, identity: str, *, since: float, requests: int, known: Collection[str] = ()
    ) -> BatchStatus | None:
        """Return the batch with this identity, created at `since` or later with so many requests; None if the provider
        lists none. A batch whose `create` was obeyed late is not listed yet: None is final only `SETTLED_S` after
        `create` has ended.

        `known` are ids of batches that are known to be others. Where a batch's identity cannot be known yet
        (Anthropic), one that fits by time and number is returned with the identity None: it is the one in question
        unless somebody else made it, which `results` finds out. Raises `UndecidedBatch` if several fit.
        """
        ...

    def results(self, batch: BatchStatus, identity: str) -> AsyncIterator[BatchResult]:
        """Yield the results of a batch that is over, in any order, in bounded memory; each id once, without the
        identity. It may be begun again as often as wanted.

        Raises `ForeignBatch` at once if they belong to another batch, and `DamagedResults` at the end, after all that
        is sound.
        """
        ...

    async def cancel(self, batch_id: str) -> BatchStatus:
        """Ask for the end of a batch and return it as it is then: mostly `CANCELLING`. What was made before is billed
        and has results. A batch that is over stays as it is, and is returned."""
        ...

    async def close(self) -> None: ...
