"""The production policy behind the small interface by which controllers are judged in virtual time.

One process, decisions after every event and without delay: what the policy can do at its best. The judge tells only
the ceiling. Its clock starts at 0, the provider's instants in headers at `EPOCH`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from dicast.workers.policy import calls
from dicast.workers.policy.calls import CallOutcome, Cost, Event
from dicast.workers.policy.governor import PoolGovernor
from dicast.workers.policy.headers import read_limits
from dicast.workers.policy.parameters import BreakerPhase
from dicast.workers.policy.profiles import PoolConfig
from lab.simulation import enforcer
from lab.simulation.enforcer import CallRequest, Denied, EnforcementState, grant, in_turn, release

# Judges outside this repository import the model and its events by their former names.
sys.modules.setdefault("dicast.workers.policy.admission", enforcer)
sys.modules.setdefault("dicast.workers.policy.events", calls)

EPOCH = 1_700_000_000.0
LEASE_S = 1e6
"""The judge answers every call, so that no lease has to expire."""


class Public(Protocol):
    ceiling: int


class Adapter:
    """`on_admit_request` answers True, False (ask again after the next event) or seconds to wait."""

    def __init__(self, pub: Public, seed: int, config: PoolConfig | None = None) -> None:
        self.seed = seed
        self.governor = PoolGovernor(config or PoolConfig(ceiling=pub.ceiling))
        self.enforcement = EnforcementState()
        self.parameters = self.governor.decide([], 0.0)
        self._calls = 0
        self._open: dict[tuple[float, str], list[str]] = {}

    @property
    def limit(self) -> float:
        return self.governor.state.limit

    @property
    def probe_fresh(self) -> bool:
        """A half-open breaker should be tried with a unit that has all its attempts before it."""
        return self.parameters.breaker is not BreakerPhase.CLOSED

    def pick(self, now: float, projects: Iterable[Any]) -> Any:
        named = {str(project): project for project in projects}
        params = self.parameters
        turn = in_turn(named, self.enforcement.projects, params.weights, limit=params.limit, mode=params.fair)
        return None if turn is None else named[turn]

    def on_admit_request(
        self, now: float, est_tokens: float, *, project: Any = "", model: str = "", **_: Any
    ) -> bool | float:
        due = self.governor.next_at()
        if due is not None and now >= due - 1e-9:
            self._decide([], now)
        self._calls += 1
        request = CallRequest(str(self._calls), str(project), model, input_tokens=est_tokens, lease_s=LEASE_S)
        answer = grant(self.parameters, self.enforcement, request, now)
        if isinstance(answer, Denied):
            waits = [] if answer.retry_after_ms is None else [answer.retry_after_ms / 1000.0]
            due = self.governor.next_at()
            if due is not None:
                waits.append(max(0.001, due - now))
            return min(waits) if waits else False
        self._open.setdefault((round(now, 6), request.project), []).append(request.call)
        self._decide([answer.sent], now)
        return True

    def on_response(
        self,
        now: float,
        status: int,
        latency: float,
        headers: Mapping[str, str],
        tokens: tuple[float, float],
        *,
        project: Any = "",
        key: Any = None,
        **_: Any,
    ) -> None:
        place = (round(now - latency, 6), str(project))
        call = self._open[place].pop()
        if not self._open[place]:
            del self._open[place]
        readings = read_limits(headers, EPOCH + now)
        outcome = CallOutcome(status, Cost(1.0, tokens[1]), readings, str(key))
        done = release(self.parameters, self.enforcement, call, outcome, now)
        if done is not None:
            self._decide([done], now)

    def on_tick(self, now: float) -> None:
        self._decide([], now)

    def _decide(self, events: list[Event], now: float) -> None:
        self.parameters = self.governor.decide(events, now)
