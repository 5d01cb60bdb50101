"""Feed-forward: the provider's own budgets, followed from its headers.

A header is a snapshot of the instant at which its call arrived, one latency ago. The call's outcome repeats our
counters as they stood at its send; so what we spent since then is known exactly and a late snapshot costs nothing.
What is missing beyond our own spending was drained by other tenants of the account (`drain_per_s`, averaged).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from workers.policy.calls import NEVER
from workers.policy.events import Cost, Done
from workers.policy.headers import Reading, Unit
from workers.policy.parameters import Bucket

SCALE_WEIGHT = 0.02
SCALE_MOST = 4.0
STEADY = 0.01
"""A limit that moved by more was changed by the provider: the prediction across the change means nothing."""


@dataclass(slots=True)
class Budget:
    """One budget of one model as last seen. `spent` is our counter at `dated_at`, when `level` was left."""

    unit: Unit
    model: str
    refill_per_s: float = 0.0
    capacity: float = 1.0
    level: float = 0.0
    dated_at: float = -1.0
    spent: float = 0.0
    drain_per_s: float = 0.0
    snapshot: int = 0

    @property
    def name(self) -> str:
        return f"{self.unit}:{self.model}"

    def observe(self, reading: Reading, sent_at: float, spent: float) -> None:
        """Take a snapshot that is newer than the last one; an older one is ignored.

        Capacity: limit - remaining refills in `full_in_s`, so the bucket holds remaining + refill * full_in_s.
        """
        if sent_at < self.dated_at:
            return
        refill = reading.limit_per_min / 60.0
        elapsed = sent_at - self.dated_at
        if self.snapshot and elapsed > 0.05 and abs(refill / self.refill_per_s - 1.0) < STEADY:
            expected = min(self.capacity, self.level + self.refill_per_s * elapsed - (spent - self.spent))
            full = reading.remaining >= 0.98 * self.capacity
            missing = 0.0 if full else max(0.0, (expected - reading.remaining) / elapsed)
            self.drain_per_s += min(1.0, elapsed / 5.0) * (missing - self.drain_per_s)
            self.drain_per_s = min(0.95 * refill, self.drain_per_s)
        told = reading.remaining + refill * reading.full_in_s
        self.capacity = max(reading.remaining, told if reading.full_in_s > 0.5 else reading.limit_per_min, 1.0)
        self.refill_per_s, self.level, self.dated_at, self.spent = refill, reading.remaining, sent_at, spent
        self.snapshot += 1

    def bucket(self, reserve: float, surplus_gain: float) -> Bucket:
        return Bucket(
            name=self.name,
            unit=self.unit,
            model=self.model,
            capacity=self.capacity,
            refill_per_s=self.refill_per_s,
            drain_per_s=self.drain_per_s,
            paced=True,
            reserve=reserve,
            surplus_gain=surplus_gain,
            snapshot=self.snapshot,
            level=self.level,
            spent=self.spent,
            dated_at=self.dated_at,
        )


def amount(unit: Unit, cost: Cost) -> float:
    """What `cost` takes from a budget that counts `unit`."""
    if unit is Unit.REQUESTS:
        return cost.requests
    if unit is Unit.INPUT_TOKENS:
        return cost.input_tokens
    if unit is Unit.OUTPUT_TOKENS:
        return cost.output_tokens
    return cost.input_tokens + cost.output_tokens


@dataclass(slots=True)
class Budgets:
    """All budgets that the provider advertises, and how estimated tokens compare with used ones.

    `room_at` is when a call was last refused although every advertised budget had room for it: then something is
    bounded that the headers do not show, usually the same rate counted per second. `room_per_s` is that rate.
    """

    known: dict[str, Budget] = field(default_factory=dict)
    token_scale: float = 1.0
    room_at: float = NEVER
    room_per_s: float = 0.0

    def observe(self, event: Done) -> bool:
        """Take in an outcome's readings and tokens; True if there were readings and all showed room for the call."""
        for reading in event.readings:
            name = f"{reading.unit}:{event.model}"
            budget = self.known.setdefault(name, Budget(reading.unit, event.model))
            budget.observe(reading, event.sent_at, amount(reading.unit, event.spent))
        used = event.used.input_tokens + event.used.output_tokens
        if event.ok and used > 0 and event.estimated_tokens > 0:
            scale = min(SCALE_MOST, used / event.estimated_tokens)
            self.token_scale += SCALE_WEIGHT * (scale - self.token_scale)
        needed = 2.0 * event.estimated_tokens * self.token_scale
        return bool(event.readings) and all(
            reading.remaining > 0.02 * reading.limit_per_min + (1.0 if reading.unit is Unit.REQUESTS else needed)
            for reading in event.readings
        )

    def refused_with_room(self, now: float) -> bool:
        """Note such a refusal; True if it is the second within a few seconds and the rate is known."""
        again = now - self.room_at < 3.0
        self.room_at = now
        self.room_per_s = min((b.refill_per_s for b in self.known.values() if b.unit is Unit.REQUESTS), default=0.0)
        return again and self.room_per_s > 0

    def buckets(self, reserve: float, surplus_gain: float) -> list[Bucket]:
        return [budget.bucket(reserve, surplus_gain) for budget in self.known.values()]


def configured_bucket(unit: Unit, per_min: float) -> Bucket:
    """An operator's own budget, kept in every window of a minute.

    In any minute at most `capacity + 60 * refill` is granted, so the depth is taken off the refill: requests have
    a depth of a tenth of a second (one call when that is less), tokens of three seconds. A call larger than the
    depth of a token bucket goes when the bucket is full, and is paid back by waiting.
    """
    seconds = 0.1 if unit is Unit.REQUESTS else 3.0
    free = 1.0 if unit is Unit.REQUESTS else 0.0
    depth = max(1.0, per_min * seconds / 60.0)
    return Bucket(f"configured_{unit}", unit, "", depth, max(1e-3, (per_min - (depth - free)) / 60.0))
