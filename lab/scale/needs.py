"""What so many calls a second need: arithmetic on what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

BUSY_MOST = 0.6
"""Of a store's or a worker's core: beyond it waiting grows faster than work (at 0.6, on average to 2.5 times a lone
one's service time, M/M/1)."""
WORKER_MB_BASE = 106
WORKER_MB_OPEN = 0.09
"""docs/benchmarks.md, *Dicast alone: open*: idle, and what an open call adds."""


@dataclass(frozen=True, slots=True)
class CallCost:
    """CPU ms of one call, units judged one by one; the store's bytes of a call that is open."""

    store_ms: float
    worker_ms: float
    called_bytes: float


@dataclass(frozen=True, slots=True)
class Sizing:
    """For so many calls a second: open ones, stores, worker processes (a core each), and memory in MB."""

    calls_per_s: float
    open_calls: int
    stores: int
    workers: int
    open_each: int
    worker_mb: float
    store_mb: float


def needs(calls_per_s: float, latency_s: float, cost: CallCost, busy_most: float = BUSY_MOST) -> Sizing:
    """Raises `ValueError` unless calls, latency and share are positive, and the share at most 1."""
    if not (calls_per_s > 0 and latency_s > 0 and 0 < busy_most <= 1):
        raise ValueError(
            f"calls a second and latency must be above 0 and the busy share in (0, 1], got {calls_per_s:g},"
            f" {latency_s:g}, {busy_most:g}"
        )
    open_calls = math.ceil(calls_per_s * latency_s)
    stores = math.ceil(calls_per_s * cost.store_ms / 1000 / busy_most)
    workers = math.ceil(calls_per_s * cost.worker_ms / 1000 / busy_most)
    each = math.ceil(open_calls / workers)
    store_mb = open_calls * cost.called_bytes / stores / 1e6
    return Sizing(
        calls_per_s, open_calls, stores, workers, each, WORKER_MB_BASE + WORKER_MB_OPEN * each, store_mb
    )  # fmt: skip


def slot_used(call_s: float, gap_s: float, round_trip_s: float, trips: int) -> float:
    """The share of its time that a slot is used whose next call comes `gap_s` and so many round trips after each."""
    return call_s / (call_s + gap_s + trips * round_trip_s)


def cost_of(whole: Mapping[str, float], called_bytes: float) -> CallCost:
    """Of what `a_unit` has measured."""
    return CallCost(whole["store_ms"], whole["worker_ms"], called_bytes)
