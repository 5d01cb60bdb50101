"""The policy as it really runs: several admitters share one store, and decisions come late.

Every grant and release is one atomic step in the store, with the parameters in force. What differs from one process:
decisions are made a while after the events, and take effect later still; an admitter hears late that a lease was
given back elsewhere; outcomes are reported late, and some never reach the governor.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dicast.workers.policy.calls import CallOutcome, Cost, Event
from dicast.workers.policy.governor import GovernorState, PoolGovernor
from dicast.workers.policy.headers import read_limits
from dicast.workers.policy.parameters import BreakerPhase, Parameters
from dicast.workers.policy.profiles import PoolConfig
from lab.simulation.chance import seeded
from lab.simulation.client import MODEL, SimWait
from lab.simulation.enforcer import CallRequest, Denied, EnforcementState, grant, in_turn, release
from lab.simulation.provider import EPOCH, SimUnit
from lab.simulation.scenario import Span

FALLBACK_S = 1.0
"""An admitter that was denied asks again after so long, whatever it has heard."""
LEASE_S = 120.0


@dataclass(frozen=True, slots=True)
class Effects:
    """What the network and the schedulers do; spans are drawn from uniformly.

    beat_s      between decisions; `urgent_s`: a refusal or failure hastens the next one to this
    commit_s    from a decision to its effect; `handover_share` of them are another leader's, from the stored state
    news_s      until other admitters hear of a lease given back
    late_share  of the outcomes are reported late by `late_s`; `lost_share` never reach the governor
    step_s      from one step of an admitter to its next: in each, outcomes are reported and leases asked for together
    work_s      an admitter's own work for each call, and again for its answer; it does one thing at a time
    start_s     until an admitter begins
    """

    admitters: int = 4
    beat_s: Span = (0.05, 1.0)
    urgent_s: Span = (0.02, 0.2)
    commit_s: Span = (0.005, 0.05)
    handover_share: float = 0.05
    news_s: Span = (0.005, 0.05)
    late_share: float = 0.01
    late_s: Span = (0.1, 2.0)
    lost_share: float = 0.01
    step_s: Span = (0.0, 0.0)
    work_s: float = 0.0
    start_s: Span = (0.0, 0.0)


class SimStore:
    """The shared state: enforcement, parameters in force, and the stream of events not yet decided upon."""

    def __init__(self, ceiling: int, seed: int, effects: Effects) -> None:
        self.effects = effects
        self._draw = seeded("store", seed)
        self._config = PoolConfig(ceiling=ceiling)
        self._governor = PoolGovernor(self._config)
        self.enforcement = EnforcementState()
        self.parameters = self._governor.decide([], 0.0)
        self._stream: list[Event] = []
        self._coming: tuple[float, Parameters] | None = None
        self._decide_at = 0.0

    @property
    def due(self) -> float:
        return self._decide_at if self._coming is None else min(self._coming[0], self._decide_at)

    def append(self, event: Event, now: float, *, urgent: bool = False) -> None:
        self._stream.append(event)
        if urgent:
            self._decide_at = min(self._decide_at, now + self._draw.uniform(*self.effects.urgent_s))

    def work(self, now: float) -> bool:
        """What the beat does: let a decision take effect (True), or make the next one."""
        in_force = self._coming is not None and now >= self._coming[0]
        if self._coming is not None and in_force:
            self.parameters, self._coming = self._coming[1], None
        if now >= self._decide_at:
            if self._draw.random() < self.effects.handover_share:
                stored = GovernorState.from_json(self._governor.state.to_json())
                self._governor = PoolGovernor(self._config, stored)
            decided = self._governor.decide(self._stream, now)
            self._stream = []
            self._coming = (now + self._draw.uniform(*self.effects.commit_s), decided)
            self._decide_at = now + self._draw.uniform(*self.effects.beat_s)
        return in_force

    def is_lost(self) -> bool:
        return self._draw.random() < self.effects.lost_share

    def report_delay_s(self) -> float:
        late = self._draw.random() < self.effects.late_share
        return self._draw.uniform(*self.effects.late_s) if late else 0.0


class Admitter:
    """One worker: asks the store for leases, and hears of what happens elsewhere after a while."""

    def __init__(self, store: SimStore, index: int, peers: list[Admitter], seed: int) -> None:
        self._store, self._index, self._peers = store, index, peers
        self._draw = seeded("admitter", index, seed)
        self._numbers = itertools.count()
        self._calls: dict[int, str] = {}
        self._reports: list[tuple[float, int, str, CallOutcome]] = []
        self._step_at = self._draw.uniform(*store.effects.start_s)
        self._stepped_at = -math.inf
        self._free_at = 0.0
        self._news_at = math.inf

    @property
    def prefers_fresh(self) -> bool:
        return self._store.parameters.breaker is not BreakerPhase.CLOSED

    def next_project(self, now: float, waiting: Sequence[int]) -> int | None:
        params = self._store.parameters
        turn = in_turn(
            map(str, waiting), self._store.enforcement.projects, params.weights, limit=params.limit, mode=params.fair
        )
        return None if turn is None else int(turn)

    def ask(self, now: float, unit: SimUnit) -> SimWait | None:
        if now < self._step_at and now != self._stepped_at:
            return SimWait(self._step_at - now)
        if now != self._stepped_at:
            self._stepped_at, self._step_at = now, now + self._draw.uniform(*self._store.effects.step_s)
        call = f"{self._index}-{next(self._numbers)}"
        request = CallRequest(call, str(unit.project), MODEL, input_tokens=unit.estimate, lease_s=LEASE_S)
        answer = grant(self._store.parameters, self._store.enforcement, request, now)
        if isinstance(answer, Denied):
            wait_s = FALLBACK_S if answer.retry_after_ms is None else min(FALLBACK_S, answer.retry_after_ms / 1000.0)
            return SimWait(wait_s + self._draw.uniform(0.0, 0.005))
        self._calls[unit.key] = call
        self._store.append(answer.sent, now)
        return None

    def answered(self, now: float, unit: SimUnit, status: int, sent_at: float, headers: Mapping[str, str]) -> None:
        used = Cost(1.0, unit.input_tokens + unit.output_tokens if status == 200 else 0.0)
        readings = read_limits(headers, EPOCH + now)
        outcome = CallOutcome(status, used, readings, str(unit.key))
        due = max(now, self._step_at) + self._store.report_delay_s()
        heapq.heappush(self._reports, (due, next(self._numbers), self._calls.pop(unit.key), outcome))
        self.wake(now)

    def busy_s(self, now: float) -> float:
        if not self._store.effects.work_s:
            return 0.0
        self._free_at = max(self._free_at, now) + self._store.effects.work_s
        return self._free_at - now

    @property
    def due(self) -> float:
        mine = min(self._reports[0][0] if self._reports else math.inf, self._news_at)
        return min(mine, self._store.due) if self._index == 0 else mine

    def wake(self, now: float) -> None:
        """Report what is due, take note of news, and, on the first admitter's machine, run the beat."""
        if now >= self._news_at:
            self._news_at = math.inf
        while self._reports and self._reports[0][0] <= now:
            _, _, call, outcome = heapq.heappop(self._reports)
            done = release(self._store.parameters, self._store.enforcement, call, outcome, now)
            if done is not None and not self._store.is_lost():
                self._store.append(done, now, urgent=done.was_refused or done.failed)
            for peer in self._peers:
                if peer is not self:
                    peer.hear(now)
        if self._index == 0 and now >= self._store.due and self._store.work(now):
            for peer in self._peers:
                peer.hear(now)

    def hear(self, now: float) -> None:
        """A lease was given back elsewhere, or a decision has come into force."""
        self._news_at = min(self._news_at, now + self._draw.uniform(*self._store.effects.news_s))


def admitters(ceiling: int, seed: int, effects: Effects) -> list[Admitter]:
    """As many as the effects say, with one store between them."""
    store = SimStore(ceiling, seed, effects)
    found: list[Admitter] = []
    for index in range(effects.admitters):
        found.append(Admitter(store, index, found, seed))
    return found
