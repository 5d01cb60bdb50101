"""The evidence: which calls were sent with how many others open, and which of them the provider refused.

Refusals come back fast and answers slowly, so silence is information: a call that is older than the feedback delay and
was not refused has been accepted. So the engine reacts within the time of a refusal instead of a whole round trip.

The enforcer reports two events to the governor: `Sent` when a call leaves, `Done` when its outcome is recorded.
Instants are seconds on the lease clock. Both are appended by the store's scripts, so that their order is the order in
which things happened. A lost `Done` leaves its call open until it is too old to matter; a lost `Sent` is reconstructed
from the `Done`, which repeats what was known at the send.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from dicast.workers.policy.headers import NO_READINGS, Readings

REFUSALS = frozenset({429, 529})
"""The statuses of calls that the provider's limits kept from being served; they say nothing about the unit."""
OVERLOADED = 529
"""The provider is short of capacity for everybody; it says nothing about this account's limits."""
UNAVAILABLE = 503
"""A server that is full says so, as well as one that is down. The first answers sooner than it serves a call."""
NO_CONTENT = 204
"""A success without an answer, such as a page of a gateway that is full or that has an error of its own."""


class Cost(NamedTuple):
    """What a call takes from the budgets. Tokens are estimates before the answer, and the provider's count after it."""

    requests: float = 1.0
    input_tokens: float = 0.0
    output_tokens: float = 0.0


NOTHING = Cost(0.0)


@dataclass(frozen=True, slots=True)
class Sent:
    """A lease was granted; the call leaves now.

    `open_before` is the number of leases open just before, `limit` the limit in force. `held_by` is the reason of the
    pool's last denial since the previous grant ('' if none): the bound that the traffic runs against.
    """

    call: str
    at: float
    open_before: int
    limit: int
    held_by: str = ""
    probe: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """A lease was given back with its outcome.

    `status` is the HTTP status; 0 when no answer came. A 429 that means "no money left" is permanent and must
    be reported as 402, since waiting does not help. `spent` are the model's counters just after this call was reserved:
    they date the header readings. `reporter` tells distinct observers apart (the job or unit).
    """

    call: str
    at: float
    sent_at: float
    open_before: int
    status: int
    model: str = ""
    spent: Cost = NOTHING
    estimated_tokens: float = 0.0
    used: Cost = NOTHING
    readings: Readings = NO_READINGS
    reporter: str = ""
    probe: bool = False

    @property
    def latency_s(self) -> float:
        return self.at - self.sent_at

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300 and self.status != NO_CONTENT

    @property
    def was_refused(self) -> bool:
        return self.status in REFUSALS

    @property
    def failed(self) -> bool:
        """Whether the provider has failed: 5xx, 408, or no answer at all."""
        return not self.was_refused and (self.status == 408 or self.status >= 500 or self.status < 100)


Event = Sent | Done


def is_sane(event: Event) -> bool:
    """Return whether the event is plausible: finite instants, nothing before its cause, no negative counts."""
    if isinstance(event, Sent):
        return math.isfinite(event.at) and event.open_before >= 0
    instants = math.isfinite(event.at) and math.isfinite(event.sent_at) and event.at >= event.sent_at
    amounts = all(math.isfinite(x) and x >= 0 for x in (*event.spent, *event.used, event.estimated_tokens))
    return instants and amounts and event.open_before >= 0 and 0 <= event.status <= 999


NEVER = -1e9
"""An instant before all others (JSON has no infinity)."""
MOST_TRIALS = 2000


@dataclass(slots=True)
class LoggedCall:
    """One call, the `number`th. `refused_at` is when its refusal came back. `explained` says that a rule acted on the
    refusal, `forgiven` that it was noise."""

    call: str
    number: int
    sent_at: float
    open_before: int
    refused_at: float | None = None
    explained: bool = False
    forgiven: bool = False

    @property
    def was_refused(self) -> bool:
        return self.refused_at is not None


@dataclass
class CallLog:
    """The calls of the last few round trips, in the order of sending; never more than `MOST_TRIALS`."""

    trials: deque[LoggedCall] = field(default_factory=deque)
    refusals: deque[LoggedCall] = field(default_factory=deque)
    sent_total: int = 0

    def __post_init__(self) -> None:
        self._open = {trial.call: trial for trial in self.trials if not trial.was_refused}
        self.refusals = deque((trial for trial in self.trials if trial.was_refused), maxlen=200)

    def sent(self, event: Sent) -> None:
        self.sent_total += 1
        trial = LoggedCall(event.call, self.sent_total, event.at, event.open_before)
        self.trials.append(trial)
        self._open[event.call] = trial

    def record_outcome(self, event: Done, *, turned_away: bool = False) -> LoggedCall:
        """Record the outcome; a call whose `Sent` was lost is reconstructed from its outcome. One that was
        `turned_away` counts as refused, whatever its status."""
        trial = self._open.pop(event.call, None)
        if trial is None:
            self.sent_total += 1
            trial = LoggedCall(event.call, self.sent_total, event.sent_at, event.open_before)
            self.trials.append(trial)
            if len(self.trials) > 1 and self.trials[-2].sent_at > trial.sent_at:
                self.trials = deque(sorted(self.trials, key=lambda t: t.sent_at))
        if event.was_refused or turned_away:
            trial.refused_at = event.at
            self.refusals.append(trial)
        return trial

    def forget(self, before: float) -> None:
        """Drop the calls sent earlier than `before`, and the oldest beyond the bound."""
        while self.trials and (self.trials[0].sent_at < before or len(self.trials) > MOST_TRIALS):
            self._open.pop(self.trials.popleft().call, None)
        while self.refusals and self.refusals[0].sent_at < before:
            self.refusals.popleft()

    def since(self, instant: float) -> Iterator[LoggedCall]:
        """Yield the calls sent after `instant`, latest first."""
        for trial in reversed(self.trials):
            if trial.sent_at <= instant:
                return
            yield trial

    def nth_sent_at(self, number: int) -> float | None:
        """Return the send time of the `number`th call ever sent; None if it was not sent yet. For a forgotten call, it
        is that of the oldest known one."""
        later = self.sent_total - number
        if later < 0 or not self.trials:
            return None
        return self.trials[max(0, len(self.trials) - 1 - later)].sent_at

    def explain(self, since: float) -> None:
        """Mark the refusals of calls sent since then as acted upon, so that they do not count as noise."""
        for trial in self.refusals:
            if trial.sent_at >= since:
                trial.explained = True

    def unforgive(self, since: float) -> None:
        """Let the refusals of calls sent after that instant count again."""
        for trial in self.refusals:
            if trial.sent_at > since:
                trial.explained = trial.forgiven = False

    def is_any_open(self, after: int, until: int) -> bool:
        """Return whether one of the calls after the number `after`, up to `until`, is still unanswered."""
        return any(after < trial.number <= until for trial in self._open.values())

    def last(self) -> LoggedCall | None:
        return self.trials[-1] if self.trials else None

    def last_refused_at(self, otherwise: float) -> float:
        """Return the send time of the latest refused call, `otherwise` if there is none."""
        return max((trial.sent_at for trial in self.refusals), default=otherwise)

    def open_at_provider(self, trial: LoggedCall) -> int:
        """Return how many calls the provider was serving when `trial` arrived: the open ones without those it
        refused."""
        refusals = sum(
            1
            for other in self.refusals
            if other.number < trial.number and other.refused_at is not None and trial.sent_at < other.refused_at
        )
        return trial.open_before - refusals

    @property
    def began_at(self) -> float:
        """When the first call that is still known was sent; `NEVER` if there is none."""
        return self.trials[0].sent_at if self.trials else NEVER

    def sent_between(self, after: float, until: float) -> int:
        return sum(1 for trial in self.since(after) if trial.sent_at <= until)

    def accepted_between(self, after: float, until: float) -> int:
        """Count the calls sent in (after, until] that were not refused. The count is final a feedback delay after
        `until`."""
        return sum(1 for trial in self.since(after) if trial.sent_at <= until and not trial.was_refused)

    def accepted_per_s(self, after: float, until: float) -> float:
        return self.accepted_between(after, until) / max(0.5, until - after)


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The outcome of a call, as its caller knows it; see `Done`. `error` describes a failure for people."""

    status: int
    used: Cost = NOTHING
    readings: Readings = NO_READINGS
    reporter: str = ""
    error: str = ""
