"""The parameters that the governor decides and the enforcer obeys: plain numbers, few enough to be read at every grant.

Instants are seconds on the lease clock. The enforcer needs nothing else: no history, and no provider's name.

A budget in its simplest form, what a call takes from one, and budgets that an operator has set belong to them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from dicast.workers.policy.calls import Cost
from dicast.workers.policy.headers import BudgetUnit

PROJECT_MAX = "project_max"
"""The reason of a denial: the project has as many calls open as it may."""


class BreakerPhase(StrEnum):
    """The circuit breaker's phase. CLOSED: calls flow. OPEN: none before `breaker_until`. HALF_OPEN: one probe
    decides."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class Bucket:
    """One budget: requests or tokens, of one model or ('') of all. It refills continuously, or is full again at once.

    A new `snapshot` number re-dates the level: at `dated_at` the provider had `level` left while our own counter
    stood at `spent`; what we spent since and what refilled since follow by arithmetic, so an old snapshot is as good
    as a new one. `drain_per_s` is what other tenants of the account take. `paced` spreads the grants: slower than
    the refill below `reserve` of the capacity, up to `surplus_gain` times the refill well above it.
    `credit` grows when the governor wants to try more than the refill; the enforcer adds the difference.
    The bucket is full again at `full_at` and each `full_every_s` from then on (0: never). This replaces the former
    level, and a snapshot dated before it is ignored.
    """

    name: str
    unit: BudgetUnit
    model: str
    capacity: float
    refill_per_s: float
    drain_per_s: float = 0.0
    paced: bool = False
    reserve: float = 0.10
    surplus_gain: float = 1.3
    snapshot: int = 0
    level: float = 0.0
    spent: float = 0.0
    dated_at: float = 0.0
    credit: float = 0.0
    full_at: float = 0.0
    full_every_s: float = 0.0

    def last_full_at(self, now: float) -> float:
        """Return when it was last full again; 0 if it has not been yet."""
        if self.full_at <= 0.0 or now < self.full_at:
            return 0.0
        if self.full_every_s <= 0.0:
            return self.full_at
        return self.full_at + math.floor((now - self.full_at) / self.full_every_s) * self.full_every_s

    def next_full_at(self, now: float) -> float:
        """Return when it will be full again; 0 if that is not known."""
        if self.full_at <= 0.0 or now < self.full_at:
            return self.full_at
        return self.last_full_at(now) + self.full_every_s if self.full_every_s > 0.0 else 0.0

    @property
    def net_refill_per_s(self) -> float:
        """Our part of the refill; never so small that an overestimate of the others' part would stop us."""
        return max(0.05 * self.refill_per_s, self.refill_per_s - self.drain_per_s)

    def pace(self, level: float) -> float:
        """Return what may be spent in a second; it lets the level settle a little above the reserve."""
        share, gain = level / self.capacity, 1.0
        if share >= self.reserve:
            gain += (self.surplus_gain - 1.0) * min(1.0, (share - self.reserve) / 0.2)
        else:
            gain = max(0.1, share / self.reserve)
        return max(1e-9, gain * self.net_refill_per_s)


class FairMode(StrEnum):
    """How a pool is shared. WORK_CONSERVING lends idle shares, STRICT never does, OFF serves in order of requests."""

    WORK_CONSERVING = "work_conserving"
    STRICT = "strict"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Parameters:
    """One decision. `version` grows with each; when it changes, the enforcer takes its own emergency measures back.

    limit              most open calls
    limit_if_refused   most open calls after a refusal, until the next decision (the step before the pending one)
    counts_after       only refusals of calls sent later than this count (the settle window)
    known_refusals     the enforcer's count of refusals when the decision was made: its reactions to later ones stay in
                       force; -1: none stay
    stop_after         this many counted refusals stop all grants for `feedback_s`, or until the next decision
    feedback_s         a call older than this that was not refused has been accepted
    hold_until         no grants before (a diagnosis is pending, or an answer has asked for a pause)
    single_call_s      0, or at most one grant in this many seconds
    pace_s, burst_s    steady spacing of grants, and how much of it may be saved up (GCRA's increment and limit)
    pace_jitter        half-width of the spacing's random part, as a share
    breaker...         see `BreakerPhase`; `break_number` names the break, so that each has one probe
    probe_s            a probe that is not answered within this time is lost
    token_scale        tokens really used over tokens estimated
    stale_after_s      after this time without a decision the limit falls to `stale_limit`
    weights            of projects; absent: 1
    project_max        most open calls of a project: below 1 a share of the limit, else a number; '*' for those absent
    """

    version: int
    decided_at: float
    limit: int
    limit_if_refused: int
    counts_after: float
    known_refusals: int = -1
    stop_after: int = 1_000_000
    feedback_s: float = 1.0
    hold_until: float = 0.0
    single_call_s: float = 0.0
    pace_s: float = 0.0
    burst_s: float = 0.0
    pace_jitter: float = 0.0
    breaker: BreakerPhase = BreakerPhase.CLOSED
    breaker_until: float = 0.0
    break_number: int = 0
    probe_s: float = 120.0
    buckets: tuple[Bucket, ...] = ()
    token_scale: float = 1.0
    stale_after_s: float = 60.0
    stale_limit: int = 1
    fair: FairMode = FairMode.WORK_CONSERVING
    weights: dict[str, float] = field(default_factory=dict)
    project_max: dict[str, float] = field(default_factory=dict)
    demand_ttl_s: float = 5.0

    def unknown_refusals(self, refusals: int, refused_sent_at: float) -> int:
        """Return how many of the enforcer's refusals this decision could not take into account. `refused_sent_at` is
        when the last refused call was sent."""
        if self.known_refusals < 0 or refused_sent_at <= self.counts_after:
            return 0
        return max(0, refusals - self.known_refusals)

    def limit_in_force(self, refused: int, now: float) -> int:
        """Return the most open calls now: the limit as decided, lowered after a refusal or when the governor is
        silent. `refused` counts the refusals that the decision does not know."""
        limit = min(self.limit, self.limit_if_refused) if refused else self.limit
        return min(limit, self.stale_limit) if now > self.decided_at + self.stale_after_s else limit


def amount(unit: BudgetUnit, cost: Cost) -> float:
    """Return what `cost` takes from a budget that counts `unit`."""
    if unit is BudgetUnit.REQUESTS:
        return cost.requests
    if unit is BudgetUnit.INPUT_TOKENS:
        return cost.input_tokens
    if unit is BudgetUnit.OUTPUT_TOKENS:
        return cost.output_tokens
    return cost.input_tokens + cost.output_tokens


def configured_bucket(unit: BudgetUnit, per_min: float) -> Bucket:
    """Return a bucket for an operator's own budget, which holds in every window of a minute.

    In any minute at most `capacity + 60 * refill` is granted, so the depth is taken off the refill: requests have
    a depth of a tenth of a second (one call when that is less), tokens of three seconds. A call larger than the
    depth of a token bucket is granted when the bucket is full, and is paid back by waiting.
    """
    seconds = 0.1 if unit is BudgetUnit.REQUESTS else 3.0
    free = 1.0 if unit is BudgetUnit.REQUESTS else 0.0
    depth = max(1.0, per_min * seconds / 60.0)
    return Bucket(f"configured_{unit}", unit, "", depth, max(1e-3, (per_min - (depth - free)) / 60.0))
