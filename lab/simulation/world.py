"""The world in virtual time: units that want to be called, clients that admit them, one provider.

Four projects always have work, one of them asks for seven tenths of the calls; or one project has a certain amount of
it. A unit has 3 attempts for ordinary
failures and 5 requeues for refusals, waits before each as its provider says and at least with exponential backoff,
and holds no slot meanwhile. Events are handled in the order of time; the same seed gives the same run.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lab.simulation.chance import seeded
from lab.simulation.client import PROJECTS, Client, Oracle, SimWait
from lab.simulation.provider import MAX_OUTPUT_TOKENS, NETWORK_S, SimProvider, SimUnit
from lab.simulation.scenario import Scenario

ATTEMPTS = 3
REQUEUES = 5
REFUSALS = (429, 529)
SHARES = (0, 0, 0, 0, 0, 0, 0, 1, 2, 3)
"""Whose work comes next where the client does not care."""


@dataclass(slots=True)
class SimRecord:
    """What happened in one run, counted at the provider and at the units. Lists are per second.

    From the first call that arrived, at `started_at`, the provider offered and used slots for so many seconds;
    `served_s` is how long each served call took, in the order in which they were accepted.
    """

    scenario: Scenario
    accepted: list[int]
    refused: list[int]
    open_seconds: list[float]
    succeeded: list[int] = field(default_factory=lambda: [0 for _ in PROJECTS])
    tokens: float = 0.0
    calls: int = 0
    units: int = 0
    unresolved: int = 0
    latency_sum_s: float = 0.0
    started_at: float | None = None
    ended_at: float = 0.0
    offered_slot_s: float = 0.0
    used_slot_s: float = 0.0
    served_s: list[float] = field(default_factory=list)

    @property
    def goodput(self) -> float:
        """Tokens where tokens are the scarce thing, else calls."""
        by_tokens = self.scenario.tokens_per_min and not self.scenario.cap
        return self.tokens if by_tokens else float(sum(self.succeeded))


class SimWorld:
    """One run. `build` makes the clients that share the provider."""

    def __init__(self, scenario: Scenario, seed: int, build: Callable[[SimProvider], list[Client]]) -> None:
        self.scenario = scenario
        self._draw = seeded("world", seed)
        self._provider = SimProvider(scenario, seed)
        self._clients = build(self._provider)
        self._slots = math.ceil((scenario.ceiling + 4) / len(self._clients))
        self._busy = [0 for _ in self._clients]
        self._turn = [0 for _ in self._clients]
        self._asking_at = [math.inf for _ in self._clients]
        self._armed = [math.inf for _ in self._clients]
        self._queued: dict[int, Callable[[], None]] = {}
        self._retries = [[deque[SimUnit]() for _ in PROJECTS] for _ in self._clients]
        self._fresh: list[list[SimUnit | None]] = [[None for _ in PROJECTS] for _ in self._clients]
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.now = 0.0
        length = int(scenario.seconds) + 2
        self.record = SimRecord(scenario, [0] * length, [0] * length, [0.0] * length)

    def run(self) -> SimRecord:
        for index in range(len(self._clients)):
            self._at(0.0, functools.partial(self._dispatch, index))
        self._arm()
        while self._heap:
            at, _, action = heapq.heappop(self._heap)
            if at > self.scenario.seconds:
                break
            self._count_open(self.now, at)
            self.now = at
            action()
            if self._is_finished():
                break
            self._arm()
        self.record.ended_at = min(self.now, self.scenario.seconds)
        return self.record

    def _is_finished(self) -> bool:
        units, record = self.scenario.units, self.record
        return bool(units) and sum(record.succeeded) + record.unresolved >= units

    def _arm(self) -> None:
        """See to it that every client is woken when it is due."""
        for index, client in enumerate(self._clients):
            if client.due < self._armed[index]:
                self._armed[index] = client.due
                self._at(client.due, functools.partial(self._wake, index, client.due))

    def _at(self, instant: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (max(instant, self.now), next(self._order), action))

    def _count_open(self, start: float, end: float) -> None:
        second, number = int(start), self._provider.open
        if self.record.started_at is not None:
            self.record.offered_slot_s += self._provider.cap(start) * (end - start)
            self.record.used_slot_s += number * (end - start)
        while number and second < end:
            self.record.open_seconds[second] += number * (min(end, second + 1) - max(start, second))
            second += 1

    # Sending

    def _wake(self, index: int, armed: float) -> None:
        if armed != self._armed[index]:
            return
        self._armed[index] = math.inf
        self._clients[index].wake(self.now)
        self._dispatch(index)

    def _dispatch(self, index: int) -> None:
        """Let one client send as much as it may."""
        client = self._clients[index]
        while self._busy[index] < self._slots:
            project = client.next_project(self.now, self._waiting(index))
            if project is None:
                return
            unit = self._next_unit(index, project, client.prefers_fresh)
            said = client.ask(self.now, unit)
            if isinstance(said, SimWait):
                if said.seconds is not None:
                    self._ask_again(index, self.now + max(said.seconds, 1e-3))
                return
            self._taken(index, unit)
            self._send(index, unit)

    def _waiting(self, index: int) -> Sequence[int]:
        """Projects that have a unit for this client."""
        if not self.scenario.units:
            return PROJECTS
        if self._retries[index][0] or self._fresh[index][0] or self.record.units < self.scenario.units:
            return PROJECTS[:1]
        return ()

    def _ask_again(self, index: int, instant: float) -> None:
        if instant >= self._asking_at[index]:
            return
        self._asking_at[index] = instant
        self._at(instant, functools.partial(self._ask, index))

    def _ask(self, index: int) -> None:
        if self.now >= self._asking_at[index]:
            self._asking_at[index] = math.inf
        self._dispatch(index)

    def _next_unit(self, index: int, project: int, fresh: bool) -> SimUnit:
        retries = self._retries[index][project]
        none_left = self.scenario.units and self.record.units >= self.scenario.units
        if retries and (not fresh or (none_left and self._fresh[index][project] is None)):
            return retries[0]
        unit = self._fresh[index][project]
        if unit is None:
            unit = self._fresh[index][project] = self._new_unit(project)
        return unit

    def _taken(self, index: int, unit: SimUnit) -> None:
        if self._fresh[index][unit.project] is unit:
            self._fresh[index][unit.project] = None
        else:
            self._retries[index][unit.project].popleft()

    def _new_unit(self, project: int) -> SimUnit:
        scenario, gauss = self.scenario, self._draw.gauss
        size = gauss(0.0, 1.0)
        input_tokens = 2000.0 * math.exp(0.35 * gauss(0.0, 1.0))
        self.record.units += 1
        return SimUnit(
            project=project,
            key=self.record.units,
            input_tokens=input_tokens,
            output_tokens=min(MAX_OUTPUT_TOKENS, 400.0 * math.exp(0.4 * (0.7 * size + 0.714 * gauss(0.0, 1.0)))),
            estimate=(input_tokens + 450.0) * 1.1 * math.exp(0.2 * gauss(0.0, 1.0)),
            latency_s=min(
                40.0, max(scenario.latency_least_s, scenario.latency_median_s * math.exp(scenario.latency_sigma * size))
            ),
        )

    def _send(self, index: int, unit: SimUnit) -> None:
        provider, sent_at = self._provider, self.now
        self.record.calls += 1
        self._busy[index] += 1
        provider.en_route += 1
        provider.en_route_tokens += unit.input_tokens + MAX_OUTPUT_TOKENS
        if isinstance(self._clients[index], Oracle):
            under_way_s = NETWORK_S
        else:
            under_way_s = self._clients[index].busy_s(self.now) + self._draw.uniform(*self.scenario.network_s)
        self._at(self.now + under_way_s, functools.partial(self._arrive, index, unit, sent_at))

    # Answers

    def _arrive(self, index: int, unit: SimUnit, sent_at: float) -> None:
        provider = self._provider
        provider.en_route -= 1
        provider.en_route_tokens -= unit.input_tokens + MAX_OUTPUT_TOKENS
        answer = provider.arrive(self.now, unit)
        if self.record.started_at is None:
            self.record.started_at = self.now
        if answer.status in (200, 500):
            self.record.accepted[int(self.now)] += 1
            if answer.after_s is not None:
                self.record.served_s.append(answer.after_s)
        elif answer.status in REFUSALS:
            self.record.refused[int(self.now)] += 1
        finish = functools.partial(self._finish, index, unit, sent_at, answer.status, answer.headers)
        if answer.after_s is None:
            self._queued[unit.key] = finish
        else:
            self._at(self.now + answer.after_s, finish)

    def _finish(self, index: int, unit: SimUnit, sent_at: float, status: int, headers: dict[str, str]) -> None:
        """An answer reached its client."""
        started = self._provider.leave(self.now, unit, status)
        if started is not None:
            serve_s = started.latency_s * self.scenario.slowness(self.now)
            self._at(self.now + serve_s, self._queued.pop(started.key))
        busy_s = self._clients[index].busy_s(self.now)
        heard = functools.partial(self._hear, index, unit, sent_at, status, headers)
        if busy_s:
            self._at(self.now + busy_s, heard)
        else:
            heard()

    def _hear(self, index: int, unit: SimUnit, sent_at: float, status: int, headers: dict[str, str]) -> None:
        """The client has taken in an answer."""
        self._busy[index] -= 1
        self._clients[index].answered(self.now, unit, status, sent_at, headers)
        record = self.record
        if status == 200:
            record.succeeded[unit.project] += 1
            record.tokens += unit.input_tokens + unit.output_tokens
            record.latency_sum_s += self.now - sent_at
        else:
            self._requeue(index, unit, status, headers)
        self._dispatch(index)

    def _requeue(self, index: int, unit: SimUnit, status: int, headers: dict[str, str]) -> None:
        if status in REFUSALS:
            unit.refusals += 1
        else:
            unit.failures += 1
        if unit.refusals > REQUEUES or unit.failures >= ATTEMPTS:
            self.record.unresolved += 1
            return
        tries = unit.refusals if status in REFUSALS else unit.failures
        wait_s = min(60.0, 2.0 ** (tries - 1)) + self._draw.uniform(0.0, 0.5)
        wait_s = max(wait_s, float(headers.get("retry-after", 0.0)))

        self._at(self.now + wait_s, functools.partial(self._back, index, unit))

    def _back(self, index: int, unit: SimUnit) -> None:
        self._retries[index][unit.project].append(unit)
        self._dispatch(index)
