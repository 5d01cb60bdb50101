"""Arguments, results and states of the ledger's verbs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import orjson

from dicast.app.domain.cost import MoneyBudget
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.plan import Lane
from dicast.app.domain.price import Place
from dicast.app.domain.scoreboard import Layout
from dicast.app.ledger.keys import PageRef


class JobState(StrEnum):
    SUBMITTED = "submitted"
    RUNNING = "running"
    CANCELLING = "cancelling"
    FINISHING = "finishing"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def ended(self) -> bool:
        return self in {JobState.COMPLETED, JobState.CANCELLED, JobState.LOST}


class UnitState(StrEnum):
    """What became of a unit that was to be revoked."""

    REVOKED = "revoked"
    OPEN = "open"
    ENDED = "ended"
    GONE = "gone"
    CANCELLED = "cancelled"


class ClaimVerdict(StrEnum):
    """The ledger's verdict on a claim."""

    RUN = "run"
    DONE = "done"
    OWNED = "owned"
    WAITING = "waiting"
    CANCELLED = "cancelled"
    REVOKED = "revoked"
    POISON = "poison"
    SPENT = "spent"
    UNKNOWN = "unknown"
    EXPIRED = "expired"
    SHORT = "short"
    BUDGET = "budget"
    CAPPED = "capped"


class WriteVerdict(StrEnum):
    """The ledger's verdict on a result."""

    NEW = "new"
    AGAIN = "again"
    STALE = "stale"
    GONE = "gone"
    DEFERRED = "deferred"


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of one unit; its fence goes with every write. `calls` counts paid calls, this one included;
    `elapsed_ms` is the time since the unit's first claim, `left_ms` that until its deadline, -1 if it has none."""

    position: int
    verdict: ClaimVerdict
    fence: int
    attempts: int
    requeues: int
    calls: int
    elapsed_ms: int
    left_ms: int = -1
    input_tokens: int = -1
    """The tokens of input that are reserved for the call; -1 for a job without caps."""
    room: int = 0
    """The tokens of output that the call is to have, where an earlier one had too few; else 0."""


NOWHERE = -1
"""The place of a unit whose job has no scoreboard."""


class UnitResult(NamedTuple):
    """The end of a unit as it is written to the ledger; `place` and `mark` are those on the scoreboard, if its job has
    one."""

    position: int
    fence: int
    payload: bytes
    scored: bool
    place: int = NOWHERE
    mark: int = 0

    @classmethod
    def read(cls, position: int, fence: int, payload: str, scored: int, *scoreboard: int) -> Self:
        """Read a result as it was sent, or stored on disk meanwhile. Earlier versions stored no place and mark."""
        return cls(position, fence, payload.encode(), bool(scored), *scoreboard)


class Deferral(NamedTuple):
    """A unit that is given up for now, with these attempts and requeues spent. `unpaid` is set if no call was made,
    `probe` if the call only found that the pool is still down, which does not count against the unit's calls."""

    position: int
    fence: int
    attempts: int
    requeues: int
    unpaid: int = 0
    probe: int = 0


class MessageId(NamedTuple):
    """Names one message of a page: a unit's position, or that of the first of the units that one call answers."""

    position: int
    batch: bool = False

    def __str__(self) -> str:
        return f"b{self.position}" if self.batch else str(self.position)

    @classmethod
    def parse(cls, text: str) -> Self:
        return cls(int(text.removeprefix("b")), text.startswith("b"))

    @classmethod
    def of(cls, lane: Lane, position: int) -> Self:
        """Return the message by which a unit of a lane is sent first."""
        return cls(position - position % lane.stride, batch=True) if lane.grouped else cls(position)

    def positions(self, lane: Lane) -> range:
        """Return the units of a lane that the message covers."""
        return range(self.position, self.position + (lane.stride if self.batch else 1))


class Due(NamedTuple):
    """When a message is to be published. One that does not `wait` is on its way already, and this is its safeguard."""

    token: MessageId
    delay_ms: int
    wait: bool = True
    input_tokens: int = 0
    """What is to be reserved for it the next time, where that was too little."""
    room: int = 0
    """The tokens of output that its next call is to have, where it had too few."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What follows from a write, the same however often it is repeated: `plan` the lane next, or `gather` the page
    because no chord will. `news` is False if the ledger knew all of it, so that this very command has counted nothing.
    """

    remaining: int
    plan: bool
    gather: bool
    written: Sequence[WriteVerdict]
    news: bool = True


@dataclass(frozen=True, slots=True)
class JobRecord:
    """The part of a job that never changes while it runs."""

    id: str
    spec: EvaluationJob
    lanes: Sequence[Lane]
    units: int
    limit: int
    fingerprint: str | None
    incarnation: str
    resumed: int = 0
    traceparent: str = ""
    """The trace context of its submission, where traces are on."""
    keeps_scoreboard: bool = False
    """Whether the ledger keeps its scoreboard; computed once from `spec`, and not for every unit."""
    is_capped: bool = False
    """Whether it must keep a cap or a budget; computed once, too."""
    budgets: Sequence[Sequence[Sequence[MoneyBudget]]] = ()
    """For each agent and deployment the budgets that its calls must keep; empty if there are none."""
    places: Sequence[Sequence[Place]] = ()
    """For each agent its deployments, with their prices as of the submission; empty for jobs of earlier versions."""

    def budgets_at(self, agent: int, deployment: int) -> Sequence[MoneyBudget]:
        """Return the budgets that an agent's calls at one of its deployments must keep."""
        return self.budgets[agent][deployment] if self.budgets else ()

    @property
    def layout(self) -> Layout:
        """The layout of its scoreboard."""
        return Layout(self.spec.rounds, len(self.spec.agents), len(self.spec.dimensions))

    @property
    def stages(self) -> list[int]:
        """The stage of each agent, as the job was laid out."""
        of_agent = {agent: lane.stage for lane in self.lanes for agent in lane.agents}
        return [of_agent[agent] for agent in sorted(of_agent)]

    def place(self, lane: Lane, position: int) -> int:
        """Return the unit's index on the scoreboard."""
        return self.layout.place(lane.unit(position))

    @property
    def items(self) -> int:
        """The number of the job's items."""
        return self.units // (len(self.spec.agents) * len(self.spec.dimensions) * self.spec.rounds)


class Started(NamedTuple):
    """A job's state now, and whether this call has started it; `expired` is set if it was not, because it is too
    late."""

    state: JobState | None
    started: bool
    expired: bool = False


class FinishFailed(NamedTuple):
    """What follows when a job could not be finished: whether it is still `finishing`, and whether it is `given_up`."""

    finishing: bool
    given_up: bool


class GatherFailed(NamedTuple):
    """What follows when a page could not be written: the job's state, None if it is not there, and whether the page is
    `given_up`: the store keeps it, and the job is to be cancelled unless it is."""

    state: JobState | None
    given_up: bool


class JobStanding(NamedTuple):
    """The progress of a job that has begun and not ended, in units."""

    state: JobState
    total: int
    done: int
    scored: int
    failed: int

    @classmethod
    def from_fields(cls, state: str | None, *units: str | None) -> JobStanding | None:
        """Make a standing from a job's fields in the ledger; None for a job that has not begun, has ended, or does not
        exist."""
        if state not in {JobState.RUNNING, JobState.CANCELLING, JobState.FINISHING}:
            return None
        return cls(JobState(state), *(int(count or 0) for count in units))


class Bounded(NamedTuple):
    """The bounds of a running job. Instants are ms of the lease clock, `unit_ms` and `pool_down_ms` durations; None
    where there is no such bound."""

    now_ms: int
    began_ms: int
    unit_ms: int | None
    ends_ms: int | None
    pool_down_ms: int | None


class OpenPage(NamedTuple):
    """A page of a job: when it was opened (lease-clock ms), and the positions that have no result."""

    ref: PageRef
    opened_ms: int
    open: Sequence[int]


class OpenQuestion(NamedTuple):
    """The progress of a job with a question: its answer if it has one, the calls that it has cost, and the number of
    pairs of items if it compares two groups."""

    stored_answer: str | None
    calls: int
    pairs: int | None


class LaneState(NamedTuple):
    """The state of a lane's planning: the cursor is None before the first page and '' at the end."""

    state: str
    cursor: str | None
    page: int
    open_units: int


class Ended(NamedTuple):
    """The end of a job: its report, and why it was revoked if it was; or it is `lost`."""

    report: Mapping[str, Any] = MappingProxyType({})
    revoked: str = ""
    lost: bool = False

    @classmethod
    def from_record(cls, record: Mapping[str, str]) -> Ended | None:
        """Make an end from a job's record in the ledger; None if it has not ended."""
        if "report" in record:
            return cls(orjson.loads(record["report"]), record.get("revoked", ""))
        return cls(lost=True) if record.get("state") == JobState.LOST else None


def read_places(text: str | None) -> list[list[Place]]:
    """Parse the places of a job's record, by agent and deployment."""
    return [[Place.from_dict(fields) for fields in agent] for agent in orjson.loads(text)] if text else []


def read_lanes(text: str) -> list[Lane]:
    """Parse the lanes of a job from the store."""
    return [
        Lane(**{**lane, "pools": tuple(lane["pools"]), "agents": tuple(lane["agents"])}) for lane in orjson.loads(text)
    ]


def stored_spec(text: str) -> EvaluationJob:
    """Parse a job from the store. It was validated when it was submitted, and is parsed without the items that came
    with it, and so without the rule of at least one item."""
    fields = orjson.loads(text)
    inline = isinstance(fields["items"], list)
    checked = EvaluationJob.model_validate(
        {**fields, "items": [{"id": "-", "text": "-"}] if inline else fields["items"]}
    )
    values = {name: getattr(checked, name) for name in EvaluationJob.model_fields}
    return EvaluationJob.model_construct(**{**values, "items": []} if inline else values)
