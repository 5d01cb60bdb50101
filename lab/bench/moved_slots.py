"""How soon a slot that comes free on one worker is taken by another: both workers' logs, one machine, one clock."""

from __future__ import annotations

import json
import statistics
import time
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import partial
from typing import NamedTuple

from dicast.app.cluster.cluster import Cluster
from lab.bench.pipeline import Figures, Machine
from tests.e2e.cluster import Worker, a_job, until

SLOTS, ROUNDS, LATENCY_S = 40, 12, 0.5
UNITS = 3_600
"""More than the rounds take: work waits all the time."""
SETTLED_S = 1.0


class LeaseLine(NamedTuple):
    """Of a worker's log: a lease is `acquired` or `released`; `at` is Unix time, s."""

    at: float
    acquired: bool
    worker: int


def moved_slots() -> Figures:
    """40 slots, 12 rounds: of two workers that which has them is cordoned, and the other takes each that comes free."""
    with Machine("--latency", str(LATENCY_S), "--sigma", "0.5", MAX_CONCURRENT_LLM_CALLS=str(SLOTS)) as m:
        m.worker()
        m.worker()
        cluster = m.cluster.app.cluster
        nodes = [node.id for node in cluster.nodes()]
        job_id = m.cluster.submit(a_job(agents=10, dimensions=30, items=UNITS // 300, pool="wide"))
        time.sleep(SETTLED_S)
        rounds = list[tuple[float, float]]()
        for number in range(ROUNDS):
            leaver, began = nodes[number % 2], time.time()
            cluster.cordon(leaver, by="bench")
            until(partial(_has_none_open, cluster, leaver), "its calls have ended")
            rounds.append((began, time.time()))
            cluster.uncordon(leaver, by="bench")
        assert m.cluster.done(job_id) < UNITS, "no work waited in the last rounds"
        lines = sorted(line for n, worker in enumerate(m.cluster.workers) for line in _lines(worker, n))
    waits = [
        1000 * (taken - freed)
        for freed, taken in moves(lines)
        if any(began <= freed and taken <= ended for began, ended in rounds)
    ]
    return {
        "slots that changed workers": len(waits),
        "median, ms": statistics.median(waits),
        "p99, ms": statistics.quantiles(waits, n=100)[98],
        "longest, ms": max(waits),
    }


def _has_none_open(cluster: Cluster, node: str) -> bool:
    return not cluster.node(node).open


def moves(lines: Iterable[LeaseLine]) -> Iterator[tuple[float, float]]:
    """When each slot that one worker gave back was taken by the other: the longest free one is taken first."""
    free = deque[LeaseLine]()
    for line in lines:
        if not line.acquired:
            free.append(line)
        elif free:
            freed = free.popleft()
            if freed.worker != line.worker:
                yield freed.at, line.at


def _lines(worker: Worker, number: int) -> Iterator[LeaseLine]:
    for text in worker.log.read_text().splitlines():
        if text.startswith("{") and (told := json.loads(text))["event"] in ("acquired", "released"):
            yield LeaseLine(datetime.fromisoformat(told["ts"]).timestamp(), told["event"] == "acquired", number)
