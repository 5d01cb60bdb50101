"""A request as it passes a gate: a message's unit, its lease, and Celery's request that carries both."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.worker.request import Request

if TYPE_CHECKING:
    from dicast.workers.policy.calls import CallOutcome

HEADER = "dicast"
SENT = "sent"
"""The header's field with the time at which a message was sent, in Unix seconds by its sender's clock."""
QUEUE_PREFIX = "provider."
"""The prefix of queues that are read by gates; the pool's name follows (workers/broker/profiles.py)."""
NAME_MAX = 1000
_UNIT = re.compile(r"[0-9b.]{1,60}", re.ASCII)
_NAMES = ("job", "project", "pool", "model")


@dataclass(frozen=True, slots=True)
class GatedUnit:
    """What a message says about its unit, in the header `dicast`.

    `labels` are passed on to the observer. `pool` is the one that the message was sent to. Budgets are charged by
    `model` and the estimated tokens. `elsewhere` says that other pools could serve the unit as well.
    """

    job: str
    project: str
    labels: Mapping[str, Any]
    pool: str = ""
    model: str = ""
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    elsewhere: bool = False

    @property
    def sent_s(self) -> float:
        """When the message was sent, in Unix seconds by its sender's clock; infinite if the message does not say."""
        sent = self.labels.get(SENT)
        return float(sent) if isinstance(sent, int | float) and not isinstance(sent, bool) else math.inf

    def lease_named(self, lease: str) -> str:
        """Return a lease's id with the name of its unit appended, as the message gives it."""
        label = self.labels.get("unit")
        return f"{lease}~{label}" if isinstance(label, str) and _UNIT.fullmatch(label) else lease

    @classmethod
    def from_header(cls, header: Any) -> GatedUnit:
        """Read a message's header. One that is foreign or broken belongs to no job, and its task runs without a lease.

        Holds: the texts can be written into the store, and are no longer than `NAME_MAX`.
        """
        if not isinstance(header, dict) or not all(_is_name(header.get(name, "")) for name in _NAMES):
            header = {}
        return cls(
            job=header.get("job", ""),
            project=header.get("project", ""),
            labels=header,
            pool=header.get("pool", ""),
            model=header.get("model", ""),
            input_tokens=_tokens(header.get("input_tokens")),
            output_tokens=_tokens(header.get("output_tokens")),
            elsewhere=header.get("elsewhere") is True,
        )


def _is_name(value: Any) -> bool:
    if not isinstance(value, str) or len(value) > NAME_MAX:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


def _tokens(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e12 else 0.0


class QueuedUnits(NamedTuple):
    """The messages that wait in a pool's queue: how many of each project, and how many whose project is not known."""

    projects: Mapping[str, int]
    unknown: int

    @classmethod
    def from_headers(cls, headers: Sequence[Mapping[str, Any]], others: int) -> QueuedUnits:
        """Count messages by their headers; `others` more wait whose headers are not known."""
        units = [GatedUnit.from_header(message_headers.get(HEADER)) for message_headers in headers]
        projects = Counter(unit.project for unit in units if unit.job)
        return cls(projects, others + len(units) - projects.total())


def _always() -> bool:
    return True


class Lease:
    """The right to have one call open until `expires_at` (the loop's monotonic clock). It is given back once.

    `outcome` is how the call ended, as soon as that is known; None while no call was made. A `probe` tries a pool whose
    circuit breaker is not closed, while all others wait. `may_begin` is called on the loop just before the call, since
    a node that was cordoned in between must not begin one. `cut` ends an open call through its `end_call`.

    If a lease is given back while the provider may still be working on its call (`at_provider`), it counts until its
    deadline, or for `further_s` if that is longer. With `cut_frees` it is free at once, since the provider ends a call
    when its connection is closed. After the release `counts_on_s` is that time; None if the lease is free.
    """

    __slots__ = (
        "_give_back", "_on_loop", "at_provider", "counts_on_s", "cut_frees", "end_call", "expires_at", "further_s",
        "id", "is_cut", "may_begin", "outcome", "probe", "unit",
    )  # fmt: skip

    def __init__(
        self,
        give_back: Callable[[Lease], None],
        on_loop: Callable[[Callable[[], None]], None],
        lease_id: str,
        unit: GatedUnit,
        expires_at: float,
        *,
        probe: bool = False,
        cut_frees: bool = True,
        may_begin: Callable[[], bool] = _always,
    ) -> None:
        self._give_back: Callable[[Lease], None] | None = give_back
        self._on_loop = on_loop
        self.id, self.unit, self.expires_at = lease_id, unit, expires_at
        self.outcome: CallOutcome | None = None
        self.may_begin = may_begin
        self.end_call: Callable[[], None] | None = None
        self.is_cut = False
        self.probe, self.cut_frees = probe, cut_frees
        self.at_provider: Callable[[], bool] = _never
        self.further_s = 0.0
        self.counts_on_s: float | None = None

    def cut(self) -> bool:
        """End the call without an answer, so that its unit is handed back; returns whether there was a call. Only on
        the loop's thread."""
        if self.end_call is None or self.is_cut:
            return False
        self.is_cut = True
        self.end_call()
        return True

    def forbid(self) -> None:
        """Forbid any new call under this lease and end the open one. On any thread."""

        def end() -> None:
            self.may_begin = _never
            self.cut()

        self._on_loop(end)

    def release(self) -> None:
        """Give the lease back; further calls have no effect. Only on the loop's thread."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            if not self.cut_frees and self.at_provider():
                self.counts_on_s = self.further_s
            give_back(self)

    def release_from_any_thread(self) -> None:
        """Schedule the release on the loop's thread."""
        if self._give_back is not None:
            self._on_loop(self.release)


def _never() -> bool:
    return False


class AdmittedRequest(Request):  # type: ignore[misc]
    """A request of a gated task. Such tasks acknowledge late: every final state leads to `acknowledge` or `reject`."""

    lease: Lease | None = None
    dropped = False
    announced = False

    @cached_property
    def unit(self) -> GatedUnit:
        return GatedUnit.from_header(self.request_dict.get(HEADER))

    def acknowledge(self) -> None:
        super().acknowledge()
        self._end()

    def reject(self, requeue: bool = False) -> None:
        super().reject(requeue)
        self._end()

    def _end(self) -> None:
        if self.lease is not None:
            lease, self.lease = self.lease, None
            lease.release_from_any_thread()
