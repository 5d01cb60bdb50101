"""Short runs as a bench over HTTP makes them: a fast provider, two workers on one machine, nothing known beforehand.

What is particular to them: an answer takes half a second, so that the delay of decisions counts; calls and answers
wait for the worker's own CPU, so that the provider has another number open than the leases say.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from lab.simulation.distributed import Effects
from lab.simulation.scenario import Class, HeaderDialect, Scenario
from lab.simulation.world import SimRecord

EFFECTS = Effects(
    admitters=2,
    beat_s=(0.05, 0.06),
    urgent_s=(0.005, 0.01),
    commit_s=(0.01, 0.05),
    news_s=(0.002, 0.02),
    late_share=0.0,
    lost_share=0.0,
    step_s=(0.001, 0.006),
    work_s=0.004,
    start_s=(0.0, 0.3),
)
"""Two workers that make 250 calls a second between them; decisions are asked for by whoever reports something."""


@dataclass(frozen=True, slots=True)
class LiveGoal:
    """What a short run demands: the least part of what is `possible` (0: the provider's slots are not what is scarce),
    the most refused, the most seconds."""

    of_possible: float
    refused: float
    seconds: float


@dataclass(frozen=True, slots=True)
class LiveResult:
    """Shares are 0..1; `seconds` until the last answer. `utilisation` is the part of the provider's slots that was used
    from the first call to the last answer, `possible` what it could have been (see there)."""

    scenario: str
    utilisation: float
    possible: float
    refused: float
    seconds: float
    unresolved: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def possible(latencies_s: Iterable[float], cap: int, cut: tuple[int, int] | None = None) -> float:
    """Part of the provider's slots that is used by a client that knows `cap` and loses no time at all.

    The calls, in the order given, take a slot each at the instant one is free. It is less than 1, since the last ones
    end one after the other. `cut` (answers, cap): after so many answers that cap is in force.
    """
    waiting, ends = deque(latencies_s), list[float]()
    now = used_s = offered_s = 0.0
    answered = 0
    while True:
        while waiting and len(ends) < cap:
            used_s += waiting[0]
            heapq.heappush(ends, now + waiting.popleft())
        if not ends:
            return used_s / offered_s if offered_s else 1.0
        offered_s, now = offered_s + cap * (ends[0] - now), heapq.heappop(ends)
        answered += 1
        if cut is not None and answered == cut[0]:
            cap = cut[1]


def _scenarios() -> list[Scenario]:
    steady = Scenario(
        "http_steady",
        "900 calls of 0.5 s, cap 40, over HTTP on one machine",
        Class.LIVE,
        seconds=120.0,
        cap=40,
        units=900,
        latency_median_s=0.5 * math.exp(-0.125),
        latency_sigma=0.5,
        latency_least_s=0.0,
        crowding=0.0,
        network_s=(0.001, 0.004),
        refusal_latency_s=(0.001, 0.004),
        error_share=0.0,
    )
    noisy = steady.but(
        "noise_300",
        "300 calls of 0.3 s, 20 at most, a tenth refused at random",
        cap=20,
        ceiling=20,
        units=300,
        noise_share=0.1,
        latency_median_s=0.3,
        latency_sigma=0.0,
    )
    return [
        steady,
        steady.but("http_cut", "the same, the cap cut to 10 after 300 answers", cut_after=(300, 0.25)),
        steady.but(
            "http_window",
            "2,400 calls, a window of 600 in 20 s binds, OpenAI; calls are under way for up to 0.3 s",
            units=2400,
            requests_per_min=1800.0,
            window_s=20.0,
            window_over_s=13.0,
            dialect=HeaderDialect.OPENAI,
            retry_after=True,
            network_s=(0.001, 0.004),
        ),
        noisy,
        noisy.but("noise_100", "100 of them", units=100),
        noisy.but(
            "noise_rate",
            "200 calls, 240 a minute, a tenth refused at random, 5 % fail",
            units=200,
            requests_per_min=240.0,
            bucket_s=5.0,
            error_share=0.05,
        ),
    ]


SCENARIOS = {scenario.name: scenario for scenario in _scenarios()}
GOALS = {
    "http_steady": LiveGoal(of_possible=0.87, refused=0.02, seconds=14.0),
    "http_cut": LiveGoal(of_possible=0.89, refused=0.05, seconds=38.0),
    "http_window": LiveGoal(of_possible=0.0, refused=0.01, seconds=77.0),
    "noise_300": LiveGoal(of_possible=0.0, refused=0.16, seconds=20.0),
    "noise_100": LiveGoal(of_possible=0.0, refused=0.20, seconds=15.0),
    "noise_rate": LiveGoal(of_possible=0.0, refused=0.40, seconds=75.0),
}


def judge_live(record: SimRecord) -> LiveResult:
    """Sum up a short run."""
    scenario = record.scenario
    cap, cut_after = int(scenario.cap), scenario.cut_after
    cut = None if cut_after is None else (cut_after[0], int(cap * cut_after[1]))
    return LiveResult(
        scenario=scenario.name,
        utilisation=record.used_slot_s / max(1e-9, record.offered_slot_s),
        possible=possible(record.served_s, cap, cut),
        refused=sum(record.refused) / max(1, record.calls),
        seconds=record.ended_at,
        unresolved=record.unresolved,
    )


def live_shortfalls(result: LiveResult) -> list[str]:
    """The demands that a short run misses; empty: passed."""
    goal, found = GOALS[result.scenario], []
    if result.utilisation < goal.of_possible * result.possible:
        found.append(f"utilisation {result.utilisation:.1%} of {result.possible:.1%}")
    if result.refused > goal.refused:
        found.append(f"refused {result.refused:.2%}")
    if result.seconds > goal.seconds:
        found.append(f"took {result.seconds:.1f} s")
    if result.unresolved:
        found.append(f"{result.unresolved} unresolved")
    return found
