"""The interface between the governor and its engines, and the engine that does nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from dicast.workers.policy.breaker import Breaker
from dicast.workers.policy.calls import Done, Sent
from dicast.workers.policy.parameters import Bucket


@dataclass(frozen=True, slots=True)
class Directives:
    """An engine's part of the parameters; see `Parameters` for their meaning. The defaults restrict nothing."""

    limit_if_refused: float
    counts_after: float = 0.0
    stop_after: int = 1_000_000
    feedback_s: float = 1.0
    hold_until: float = 0.0
    single_call_s: float = 0.0
    pace_s: float = 0.0
    burst_s: float = 0.0
    pace_jitter: float = 0.0
    token_scale: float = 1.0
    buckets: tuple[Bucket, ...] = ()


class Engine(Protocol):
    """An engine. Events come in order, each after an `advance` to its instant. `state` is all that is remembered."""

    state: Any

    @property
    def limit(self) -> float:
        """The limit that the engine wants; the governor clamps it."""
        ...

    @property
    def breaker(self) -> Breaker: ...

    def sent(self, event: Sent) -> None: ...

    def done(self, event: Done) -> None: ...

    def advance(self, now: float) -> None: ...

    def next_at(self) -> float | None: ...

    def directives(self) -> Directives: ...


@dataclass(slots=True)
class FixedState:
    """The state of `Fixed`. `asked` says that somebody set this limit, so that only a smaller ceiling may have clamped
    it; else another engine left it."""

    limit: int
    asked: bool = True
    reason: str = "fixed"
    kind: Literal["fixed"] = "fixed"


class Fixed:
    """An engine that keeps the limit, whatever happens."""

    breaker = Breaker()

    def __init__(self, state: FixedState) -> None:
        self.state = state

    @property
    def limit(self) -> float:
        return float(self.state.limit)

    def sent(self, event: Sent) -> None:
        """Nothing follows from it."""

    def done(self, event: Done) -> None:
        """Nothing follows from it."""

    def advance(self, now: float) -> None:
        """Time changes nothing."""

    def next_at(self) -> float | None:
        return None

    def directives(self) -> Directives:
        return Directives(limit_if_refused=self.limit)
