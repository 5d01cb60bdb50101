"""Where a slot's time goes between two calls, from the worker's log and the provider's: one machine, one clock."""

from __future__ import annotations

import json
import statistics
import time
import urllib.request
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from lab.bench.pipeline import Figures, Machine
from tests.e2e.cluster import a_job

OPEN, CALLS, LATENCY_S = 40, 1500, 0.5
EDGE = 150
"""So many calls at either end, where the slots fill and empty, are left out."""


def slots() -> Figures:
    """40 calls of 0.5 s open in one process, told to it: what passes between an answer and its slot's next call."""
    ceiling = {"MAX_CONCURRENT_LLM_CALLS": str(OPEN), "DICAST_MAX_CONCURRENT_LLM_CALLS_RANGE": str(OPEN)}
    with Machine("--latency", str(LATENCY_S), **ceiling) as m:
        m.worker()
        time.sleep(2.0)  # its SDKs are loaded after it is ready
        uptime_s = m.provider.stats()["uptime_s"]
        began = time.time() - uptime_s
        m.cluster.report(m.cluster.submit(a_job(agents=10, dimensions=30, items=CALLS // 300, pool="wide")), 120)
        with urllib.request.urlopen(f"{m.provider.base_url}/log", timeout=60) as reply:
            calls = json.load(reply)
        told = _told(m.cluster.workers[-1].log.read_text())
    answered = sorted(began + call["end"] for call in calls)
    called = sorted(began + call["arrival"] for call in calls)
    acquired, released = told["acquired"], told["released"]
    found = {
        "answer to release": _waits(answered, released),
        "release to the next grant": _waits(released, acquired[OPEN:]),
        "grant to call": _waits(acquired, called),
        "answer to the next call": _waits(answered, called[OPEN:]),
    }
    figures = {f"{name}, ms": 1000 * statistics.median(waits) for name, waits in found.items()}
    between_s = statistics.mean(found["answer to the next call"])
    return {**figures, "slots in use, %": 100 * LATENCY_S / (LATENCY_S + between_s)}


def _told(log: str) -> dict[str, list[float]]:
    """When each event was, Unix time, s, in order."""
    found = defaultdict(list)
    for line in log.splitlines():
        if line.startswith("{") and (told := json.loads(line)).get("event"):
            found[told["event"]].append(datetime.fromisoformat(told["ts"]).timestamp())
    return {event: sorted(times) for event, times in found.items()}


def _waits(before: Sequence[float], after: Sequence[float]) -> list[float]:
    """The first of one with the first of the other, and so on, whichever call it was: the mean is the same."""
    pairs = list(zip(before, after, strict=False))
    return [then - now for now, then in pairs[EDGE : len(pairs) - EDGE]]
