"""What a gate is given, and what it asks of the worker that it serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dicast.workers.admission.concurrency import NodeWidth
from dicast.workers.admission.governor import Governor
from dicast.workers.admission.leases import LeaseStore
from dicast.workers.admission.request import Admitted, AdmittedRequest, QueuedUnits
from dicast.workers.admission.suspension import Suspension
from dicast.workers.store.epoch import Epoch
from dicast.workers.store.keys import Keys


class Observer(Protocol):
    """Told of every event of the gate, on the loop's thread."""

    def queueing(self, unit: Admitted, pool: str, depth: int, reason: str, wait_s: float | None) -> None: ...
    def acquired(self, unit: Admitted, pool: str, lease: str, open_calls: int) -> None: ...
    def released(self, unit: Admitted, pool: str, lease: str, open_calls: int) -> None: ...
    def cut(self, unit: Admitted, pool: str, lease: str, open_calls: int, counts_on_s: float) -> None: ...
    def over_share(
        self, unit: Admitted, pool: str, limit: int, projects: int, *, width: int, share: int, unknown: int | None
    ) -> None:
        """`unknown`: units in the queue of which nobody knows whether they are this project's; None: nobody knows how
        many there are."""


@dataclass(frozen=True, slots=True)
class GateConfig:
    """What the composition root tells the gate, as `app.gate`. `lease_s` gives the life of a pool's leases: longer than
    any call of it, but no longer than needed, since a frozen node's lease is free only when it ends; `cut_frees` tells
    of which pools the provider ends a call when its connection is closed. `governor` is the running
    loop's own, `width` bounds the calls of this process, and `suspension` ends them."""

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
    """Has messages that wait at full nodes go back for idle ones; it may be called at any time, and blocks."""


class GateHost(Protocol):
    """The consumer that a gate serves. `asking` are leases asked for and not answered, `leased` those that are held."""

    config: GateConfig
    store: LeaseStore
    asking: int
    leased: int

    def free_slots(self) -> int: ...
    def new_lease_id(self) -> str: ...
    async def count_waiting(self, pool: str) -> int | None:
        """How many messages wait in the pool's queue; None if the broker does not answer."""

    async def count_by_project(self, pool: str) -> QueuedUnits | None:
        """Of which projects they are; None if the broker does not answer."""

    def on_loop(self, callback: Callable[[], None]) -> None: ...
    def start_request(self, request: AdmittedRequest) -> None:
        """Raises what the request is the cause of; then it has not been started."""

    def set_aside(self, request: AdmittedRequest, reason: str) -> None:
        """It cannot be asked for, or started. Its lease goes back with it."""

    def room_freed(self) -> None:
        """Another may ask for what this gate asked for in vain: wake those that are `starved`."""
