"""The events that the enforcer reports to the governor: `Sent` when a call leaves, `Done` when its outcome is recorded.

Instants are seconds on the lease clock. Both are appended by the store's scripts, so that their order is the order
in which things happened. A lost `Done` leaves its call open until it is too old to matter; a lost `Sent` is
reconstructed from the `Done`, which repeats what was known at the send.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from dicast.workers.policy.headers import NO_READINGS, Readings

REFUSALS = frozenset({429, 529})
"""The statuses of calls that the provider's limits kept from being served; they say nothing about the unit."""
OVERLOADED = 529
"""The provider is short of capacity for everybody; it says nothing about this account's limits."""


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
        return 200 <= self.status < 300

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
