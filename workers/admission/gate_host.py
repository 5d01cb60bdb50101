"""What a gate is configured with, and what it needs of the worker that it serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dicast.workers.admission.concurrency import NodeWidth, Suspension
from dicast.workers.admission.governor import Governor
from dicast.workers.admission.leases import LeaseStore
from dicast.workers.admission.request import AdmittedRequest, GatedUnit, QueuedUnits
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import Epoch


class Observer(Protocol):
    """Receives every event of a gate, on the loop's thread."""

    def queueing(self, unit: GatedUnit, pool: str, depth: int, reason: str, wait_s: float | None) -> None: ...
    def acquired(self, unit: GatedUnit, pool: str, lease: str, open_calls: int) -> None: ...
    def released(self, unit: GatedUnit, pool: str, lease: str, open_calls: int) -> None: ...
    def cut(self, unit: GatedUnit, pool: str, lease: str, open_calls: int, counts_on_s: float) -> None: ...
    def over_share(
        self, unit: GatedUnit, pool: str, limit: int, projects: int, *, width: int, share: int, unknown: int | None
    ) -> None:
        """`unknown`: units in the queue of which nobody knows whether they are this project's; None: nobody knows how
        many there are."""


@dataclass(frozen=True, slots=True)
class GateConfig:
    """The gates' configuration, made by the composition root (`app.admission_gate`).

    `lease_s` returns how long a pool's leases live: longer than any of its calls, but no longer than needed, since a
    frozen node's lease is free only when it expires. `cut_frees` says of a pool whether its provider ends a call when
    the connection is closed. `governor` returns the running loop's governor. `width` bounds the calls of this process,
    and `suspension` ends them.
    """

    store_url: str
    keys: Keys
    node: str
    lease_s: Callable[[str], float]
    observer: Observer
    governor: Callable[[], Governor]
    width: NodeWidth
    epoch: Epoch
    suspension: Suspension
    broker_is_store: bool = True
    cut_frees: Callable[[str], bool] = lambda _: True
    hand_on: Callable[[], None] | None = None
    """Moves messages that wait at full nodes back to the queue for idle ones. It blocks, and may be called at any
    time."""


class GateHost(Protocol):
    """The consumer that a gate serves. `asking` counts leases requested and not answered yet, `leased` those in use."""

    config: GateConfig
    store: LeaseStore
    asking: int
    leased: int

    def free_slots(self) -> int: ...
    def new_lease_id(self) -> str: ...
    async def count_waiting(self, pool: str) -> int | None:
        """Return how many messages wait in the pool's queue; None if the broker does not answer."""

    async def count_by_project(self, pool: str) -> QueuedUnits | None:
        """Of which projects they are; None if the broker does not answer."""

    def on_loop(self, callback: Callable[[], None]) -> None: ...
    def start_request(self, request: AdmittedRequest) -> None:
        """Start a request. If the request itself is at fault, this raises and the request has not been started."""

    def set_aside(self, request: AdmittedRequest, reason: str) -> None:
        """Set aside a request for which no lease can be requested, or that cannot be started. Its lease goes back."""

    def room_freed(self) -> None:
        """Wake the gates that are `starved`: slots that this gate had reserved are free again."""
