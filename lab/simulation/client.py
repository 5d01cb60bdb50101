"""Whom the world asks before each call: the oracle, or the policy with decisions at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lab.simulation.adapter import Adapter
from lab.simulation.provider import SimProvider, SimUnit

PROJECTS = range(4)
AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class SimWait:
    """Not now. `seconds` None: ask again when something has happened."""

    seconds: float | None


class Client(Protocol):
    """One admitter of calls. `prefers_fresh` asks for units that were not tried yet."""

    @property
    def prefers_fresh(self) -> bool: ...

    def next_project(self, now: float, waiting: Sequence[int]) -> int | None:
        """Whose turn it is of those that have work waiting; None: nobody's."""
        ...

    def ask(self, now: float, unit: SimUnit) -> SimWait | None:
        """None: the call leaves now."""
        ...

    def answered(self, now: float, unit: SimUnit, status: int, sent_at: float, headers: Mapping[str, str]) -> None: ...

    def busy_s(self, now: float) -> float:
        """How long its own work keeps a call or an answer that comes to it now."""
        ...

    @property
    def due(self) -> float:
        """When it has something to do even if nothing happens; infinity: never."""
        ...

    def wake(self, now: float) -> None:
        """Do what is due."""
        ...


class Oracle:
    """Knows the provider's state and sends only what will be accepted: the measure of all others."""

    prefers_fresh = False
    due = math.inf

    def __init__(self, provider: SimProvider) -> None:
        self._provider = provider
        self._turn = 0

    def next_project(self, now: float, waiting: Sequence[int]) -> int | None:
        self._turn += 1
        return waiting[self._turn % len(waiting)] if waiting else None

    def ask(self, now: float, unit: SimUnit) -> SimWait | None:
        return None if self._provider.would_accept(now, unit) else SimWait(AGAIN_S)

    def answered(self, now: float, unit: SimUnit, status: int, sent_at: float, headers: Mapping[str, str]) -> None:
        """It knew."""

    def busy_s(self, now: float) -> float:
        return 0.0

    def wake(self, now: float) -> None:
        """It never sleeps."""


@dataclass(slots=True)
class Ceiling:
    """All that a client is told about the provider."""

    ceiling: int


MODEL = "simulated"
"""All calls name their model, as a job's do."""


class Central:
    """The policy in one process: decisions after every event, at once."""

    BEAT_S = 5.0

    def __init__(self, ceiling: int, seed: int) -> None:
        self.adapter = Adapter(Ceiling(ceiling), seed)
        self.due = 0.0

    @property
    def prefers_fresh(self) -> bool:
        return self.adapter.probe_fresh

    def next_project(self, now: float, waiting: Sequence[int]) -> int | None:
        turn = self.adapter.pick(now, waiting)
        return None if turn is None else int(turn)

    def ask(self, now: float, unit: SimUnit) -> SimWait | None:
        said = self.adapter.on_admit_request(now, unit.estimate, project=unit.project, model=MODEL)
        if said is True:
            return None
        return SimWait(None if said is False else said)

    def answered(self, now: float, unit: SimUnit, status: int, sent_at: float, headers: Mapping[str, str]) -> None:
        used = unit.input_tokens + unit.output_tokens if status == 200 else 0.0
        self.adapter.on_response(
            now, status, now - sent_at, headers, (unit.estimate, used), project=unit.project, key=unit.key
        )

    def busy_s(self, now: float) -> float:
        return 0.0

    def wake(self, now: float) -> None:
        self.adapter.on_tick(now)
        self.due = now + self.BEAT_S
