"""Judges a run against the oracle's: utilisation, refused calls, convergence, unresolved units, fairness, bursts."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from lab.simulation.scenario import MEAN_TOKENS, Class, Scenario
from lab.simulation.world import SimRecord

WINDOW_S = 15
"""Converged: so many seconds at 90 % of the capacity, with at most a tenth refused."""
LATENCY_MOST = 2.0
"""Where calls that are too many only wait, answers may take so many times as long as the oracle's."""


@dataclass(frozen=True, slots=True)
class SimResult:
    """Shares are 0..1, convergence in round trips from each mark (None: never)."""

    scenario: str
    utilisation: float
    refused: float
    convergence: list[float | None]
    unresolved: int
    fairness: float
    burst: int
    latency: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SimGoal:
    """What a class of scenarios demands; convergence after the start, and after each later mark."""

    utilisation: float
    refused: float
    start_rtts: float
    later_rtts: float


FLOOR = {
    Class.INFORMED: SimGoal(0.98, 0.001, 2.0, 2.0),
    Class.HIDDEN: SimGoal(0.95, 0.025, 3.0, 12.0),
    Class.ADVERSE: SimGoal(0.91, 0.025, 35.0, 15.0),
    Class.TOLD: SimGoal(0.95, 0.025, math.inf, math.inf),
}


def judge(record: SimRecord, oracle: SimRecord) -> SimResult:
    """Compare a run with the oracle's on the same scenario and seed."""
    served = record.succeeded
    squares = sum(number * number for number in served)
    fairness = sum(served) ** 2 / (len(served) * squares) if squares else 0.0
    refused = sum(record.refused)
    return SimResult(
        scenario=record.scenario.name,
        utilisation=record.goodput / max(1.0, oracle.goodput),
        refused=refused / max(1, record.calls),
        convergence=convergence(record, oracle),
        unresolved=record.unresolved,
        fairness=fairness,
        burst=max(sum(record.refused[second : second + 10]) for second in range(len(record.refused))),
        latency=_latency(record) / max(1e-9, _latency(oracle)),
    )


def shortfalls(scenario: Scenario, result: SimResult, goals: dict[Class, SimGoal]) -> list[str]:
    """The demands that a result misses; empty: passed."""
    goal, found = goals[scenario.kind], []
    if result.utilisation < goal.utilisation:
        found.append(f"utilisation {result.utilisation:.1%}")
    if result.refused - scenario.noise_share > goal.refused:
        found.append(f"refused {result.refused:.2%}")
    for index, rtts in enumerate(result.convergence):
        most = goal.later_rtts if index else goal.start_rtts
        if most < math.inf and (rtts is None or rtts > most):
            found.append(f"convergence {'never' if rtts is None else f'{rtts:.1f}'} after mark {index}")
    if result.unresolved:
        found.append(f"{result.unresolved} unresolved")
    if (scenario.knee or scenario.servers) and result.latency > LATENCY_MOST:
        found.append(f"latency {result.latency:.1f} times the least")
    if result.fairness < 0.98:
        found.append(f"Jain {result.fairness:.2f}")
    if result.burst > 0.6 * scenario.ceiling:
        found.append(f"burst {result.burst}")
    return found


def convergence(record: SimRecord, oracle: SimRecord) -> list[float | None]:
    """Round trips from each mark to the first window that carries 90 % of the capacity with few refusals."""
    scenario = record.scenario
    found: list[float | None] = []
    for mark in scenario.marks:
        end = min([later for later in scenario.marks if later > mark], default=scenario.seconds - WINDOW_S)
        seconds = (second for second in range(int(mark), int(end) - WINDOW_S + 1) if _carries(record, oracle, second))
        first = next(seconds, None)
        found.append(None if first is None else (first - mark) / scenario.rtt_s)
    return found


def _carries(record: SimRecord, oracle: SimRecord, second: int) -> bool:
    scenario, window = record.scenario, range(second, second + WINDOW_S)
    accepted, refused = sum(record.accepted[s] for s in window), sum(record.refused[s] for s in window)
    if refused > 0.1 * (accepted + refused):
        return False
    if scenario.servers or scenario.knee or (scenario.cap and not scenario.requests_per_min):
        slots = sum(_slots(scenario, s) for s in window)
        return sum(record.open_seconds[s] for s in window) >= 0.9 * slots
    most = _calls_per_s(scenario, second) * WINDOW_S
    if not scenario.steps and scenario.tenant is None:
        near = oracle.accepted[max(0, second - 60) : second + WINDOW_S + 60]
        most = min(most, sum(near) / len(near) * WINDOW_S)
    return accepted >= 0.9 * most


def _slots(scenario: Scenario, now: float) -> int:
    calls = scenario.servers or scenario.knee or scenario.cap * scenario.ours(now)
    return math.floor(calls * scenario.scale(now) + 1e-9)


def _calls_per_s(scenario: Scenario, now: float) -> float:
    scale = scenario.scale(now) * scenario.ours(now)
    bounds = [math.inf]
    if scenario.requests_per_min:
        bounds.append(scenario.requests_per_min / 60.0 * scale)
    if scenario.tokens_per_min:
        bounds.append(scenario.tokens_per_min / 60.0 * scale / MEAN_TOKENS)
    if scenario.cap:
        bounds.append(scenario.cap * scale / (scenario.rtt_s * scenario.slowness(now) * 1.2))
    return min(bounds)


def _latency(record: SimRecord) -> float:
    return record.latency_sum_s / max(1, sum(record.succeeded))
