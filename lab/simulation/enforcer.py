"""The enforcer's arithmetic as a model in Python: grant or deny one lease, give one back.

The store's scripts do the same, step by step; the tests hold them to this model, and the simulations run on it.

It obeys `Parameters` and remembers only what a grant changes. Between decisions it protects the provider by itself: the
first refusal undoes a pending step and drops saved credit, and several refusals stop all grants for one feedback delay.

Fair shares of one pool among the projects that have work waiting.

Share of slots: `limit` divided by weight, whole slots; what the division leaves over goes, one slot each, to the
projects that were served least, so the remainder rotates by itself and nobody starves when projects outnumber slots.
Work-conserving: a project passes its share only while no other waiting project is below its own. Strict: never.

A project's maximum is not a share: it holds even if the others leave the pool empty, and no other project waits for one
that is at its maximum.

Slots say little where a rate is the bound (few calls are open, each grant is a turn): there the project served least
goes first. Service is virtual time, tokens reserved over weight (start-time fair queueing, Goyal et al. 1996). A
project that returns from a pause starts at the least service of those present, so that absence earns no credit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from dicast.workers.policy.calls import NOTHING, CallOutcome, Cost, Done, Sent
from dicast.workers.policy.parameters import PROJECT_MAX, BreakerPhase, Bucket, FairMode, Parameters, amount


@dataclass(slots=True)
class Standing:
    """One project in one pool. `asked_at` is when it last requested a lease, `waiting` whether it was denied then."""

    open: int = 0
    service: float = 0.0
    asked_at: float = 0.0
    waiting: bool = False


def shares(limit: int, standings: Mapping[str, Standing], weights: Mapping[str, float]) -> dict[str, int]:
    """Return whole slots for each project; they add up to `limit` (to 0 if there is no project)."""
    if not standings:
        return {}
    total = sum(weights.get(p, 1.0) for p in standings)
    result = {p: int(limit * weights.get(p, 1.0) / total) for p in standings}
    remainder = limit - sum(result.values())
    for project in sorted(standings, key=lambda p: (standings[p].service, p))[:remainder]:
        result[project] += 1
    return result


def most_of(project: str, limit: int, project_max: Mapping[str, float]) -> int | None:
    """Return the most open calls of a project under `limit`, at least 1; None if it has no maximum.

    In `project_max` a number below 1 is a share of the limit, and '*' stands for projects that are not named.
    """
    most = project_max.get(project, project_max.get("*"))
    if most is None:
        return None
    return max(1, int(limit * most if most < 1.0 else most))


def may_take(
    project: str,
    standings: Mapping[str, Standing],
    weights: Mapping[str, float],
    *,
    limit: int,
    mode: FairMode,
    rate_bound: bool,
    quantum: float,
) -> bool:
    """Return whether it is `project`'s turn. `standings` holds it and every project with open calls or waiting work.

    Rules, first match wins: mode OFF, or nobody else is here -> yes; at its share: strict -> no, else no while
    another waiting project is below its own; rate bound and more than `quantum` ahead of a waiting one -> no.
    """
    if mode is FairMode.OFF or len(standings) < 2:
        return True
    waiting = [p for p, s in standings.items() if s.waiting and p != project]
    if not waiting and mode is not FairMode.STRICT:
        return True
    slots = shares(limit, standings, weights)
    mine = standings[project]
    if mine.open >= slots[project]:
        if mode is FairMode.STRICT:
            return False
        if any(standings[p].open < slots[p] for p in waiting):
            return False
    return not (rate_bound and any(mine.service > standings[p].service + quantum for p in waiting))


def in_turn(
    projects: Iterable[str],
    standings: Mapping[str, Standing],
    weights: Mapping[str, float],
    *,
    limit: int,
    mode: FairMode,
) -> str | None:
    """Return the project to serve next among `projects`, all of which wait; None if strict shares are used up.

    Projects below their share come first, then those served least.
    """
    present = {p: standings.get(p) or Standing() for p in projects}
    slots = shares(limit, present, weights)
    if mode is FairMode.STRICT:
        present = {p: s for p, s in present.items() if s.open < slots[p]}
    return min(present, key=lambda p: (present[p].open >= slots[p], present[p].service, p), default=None)


MAX_WAIT_S = 5.0
"""The longest wait reported for an empty bucket: by then the parameters will have changed."""
CATCH_UP_S = 0.05
"""The lateness that a paced bucket forgives; without it, polling would cost throughput."""
SWEEP_S = 10.0
"""The time between two sweeps for models that are no longer used."""
SMALL_STEP = 0.9
"""A step is small if the limit before it was at least this part of the limit being tried."""
PROBE_HEARD_S = 5.0
"""How long a returned probe is waited for to be decided upon; after that its outcome is lost, and another may go."""


@dataclass(frozen=True, slots=True)
class CallRequest:
    """One call that requests a lease. Tokens are estimates; `jitter` in [-1, 1] is drawn by the requester. `last` says
    that it is one of the last that wait: if it were refused, it would end after all others."""

    call: str
    project: str = ""
    model: str = ""
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    jitter: float = 0.0
    lease_s: float = 120.0
    last: bool = False


@dataclass(frozen=True, slots=True)
class Granted:
    sent: Sent


@dataclass(frozen=True, slots=True)
class Denied:
    """A denial. Without `retry_after_ms` there is nothing to wait for but a lease given back or a new decision."""

    reason: str
    retry_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    project: str
    model: str
    sent_at: float
    open_before: int
    reserved: Cost
    estimated_tokens: float
    spent: Cost
    expires_at: float
    probe: bool


@dataclass(slots=True)
class Fill:
    """The fill of one bucket: `level` as of `at`. `next_at` is when a paced bucket lets the next call go, `full_at`
    when it was last refilled at once."""

    level: float
    at: float
    snapshot: int = 0
    credit: float = 0.0
    next_at: float = 0.0
    full_at: float = 0.0


@dataclass(slots=True)
class EnforcementState:
    """The enforcer's state of one pool. Leases are in the order of their expiry, as long as all live equally long."""

    leases: dict[str, LeaseRecord] = field(default_factory=dict)
    version: int = 0
    refusals: int = 0
    refused: int = 0
    refused_at: float = 0.0
    refused_sent_at: float = 0.0
    paced_until: float = 0.0
    last_sent_at: float = -1e9
    held_by: str = ""
    probe: str = ""
    probed_break: int = 0
    probe_until: float = 0.0
    fills: dict[str, Fill] = field(default_factory=dict)
    spent: dict[str, Cost] = field(default_factory=dict)
    leased_until: dict[str, float] = field(default_factory=dict)
    swept_at: float = 0.0
    projects: dict[str, Standing] = field(default_factory=dict)


def effective_limit(params: Parameters, state: EnforcementState, now: float) -> int:
    """Return the most open calls now: the limit as decided, lowered after a refusal or when the governor is silent."""
    return params.limit_in_force(state.refused, now)


def limit_for(params: Parameters, state: EnforcementState, request: CallRequest, now: float) -> int:
    """Return the most open calls for this request: the last of a queue are not used to try a small step."""
    limit = effective_limit(params, state, now)
    is_small = params.limit_if_refused >= SMALL_STEP * params.limit
    return min(limit, params.limit_if_refused) if request.last and is_small else limit


def grant(params: Parameters, state: EnforcementState, request: CallRequest, now: float) -> Granted | Denied:
    """Grant a lease, or say what prevents it and for how long.

    Rules, first match wins: breaker open -> its rest; half open -> exactly one probe; the limit; the project's own
    maximum; a diagnosis is pending; not this project's turn; else the longest wait among single calls, pacing and
    the buckets.
    Holds: a grant implies open calls <= the effective limit (one, for a probe).
    """
    _begin(params, state, request, now)
    denied = _denial(params, state, request, now)
    standing = state.projects[request.project]
    at_project_max = (
        denied is not None and denied.reason == PROJECT_MAX
    )  # then no other project is made to wait for this one
    standing.waiting = denied is not None and not at_project_max
    if denied is not None:
        state.held_by = state.held_by if at_project_max else denied.reason
        return denied
    probe = params.breaker is not BreakerPhase.CLOSED
    sent = Sent(request.call, now, len(state.leases), effective_limit(params, state, now), state.held_by, probe)
    _take(params, state, request, sent)
    return Granted(sent)


def obey(params: Parameters, state: EnforcementState) -> None:
    """Take up a new decision, and undo the reactions to refusals that the decision has taken into account."""
    if state.version == params.version:
        return
    state.version, state.refused = params.version, params.unknown_refusals(state.refusals, state.refused_sent_at)


def _begin(params: Parameters, state: EnforcementState, request: CallRequest, now: float) -> None:
    obey(params, state)
    for call in list(_expired(state, now)):
        _remove(state, call)
    _forget_models(params, state, now)
    standing = state.projects.get(request.project)
    if standing is None:
        _forget_silent(params, state, now)
        standing = state.projects[request.project] = Standing()
    if standing.open == 0 and now > standing.asked_at + params.demand_ttl_s:
        present = [s.service for s in state.projects.values() if s is not standing]
        standing.service = max(standing.service, min(present, default=0.0))
    standing.asked_at = now


def _denial(params: Parameters, state: EnforcementState, request: CallRequest, now: float) -> Denied | None:
    if params.breaker is not BreakerPhase.CLOSED:
        return _denial_while_broken(params, state, now)
    limit = limit_for(params, state, request, now)
    if len(state.leases) >= limit:
        return Denied("limit")
    most = most_of(request.project, limit, params.project_max)
    if most is not None and state.projects[request.project].open >= most:
        return Denied(PROJECT_MAX)
    hold_until = params.hold_until
    if state.refused >= params.stop_after:
        hold_until = max(hold_until, state.refused_at + params.feedback_s)
    if now < hold_until:
        return Denied("judging", _ms(hold_until - now))
    if not _turn(params, state, request, limit, now):
        return Denied("fair_share")
    cost = _reservation(params, request)
    wait, reason = 0.0, ""
    for seconds, name in _waits(params, state, request.model, cost, now):
        if seconds > wait:
            wait, reason = seconds, name
    return Denied(reason, _ms(wait)) if wait > 1e-9 else None


def _denial_while_broken(params: Parameters, state: EnforcementState, now: float) -> Denied | None:
    """Allow one probe at a time, and one for each break, unless a probe was lost without the governor knowing."""
    if now < params.breaker_until:
        return Denied("breaker", _ms(params.breaker_until - now))
    if state.probed_break == params.break_number and now < state.probe_until:
        return Denied("probe")
    return None


def _turn(params: Parameters, state: EnforcementState, request: CallRequest, limit: int, now: float) -> bool:
    present = {
        project: standing
        for project, standing in state.projects.items()
        if standing.open > 0 or now <= standing.asked_at + params.demand_ttl_s
    }
    for standing in present.values():
        if now > standing.asked_at + params.demand_ttl_s:
            standing.waiting = False
    quantum = 1.0 + (request.input_tokens + request.output_tokens) * params.token_scale
    return may_take(
        request.project,
        present,
        params.weights,
        limit=limit,
        mode=params.fair,
        rate_bound=state.held_by not in ("", "limit"),
        quantum=quantum,
    )


def _waits(
    params: Parameters, state: EnforcementState, model: str, cost: Cost, now: float
) -> Iterator[tuple[float, str]]:
    if params.single_call_s > 0:
        yield state.last_sent_at + params.single_call_s - now, "single_calls"
    if params.pace_s > 0:
        yield _paced_until(params, state) - params.burst_s - now, "pacing"
    for bucket in params.buckets:
        if bucket.model not in ("", model):
            continue
        fill = _refilled(bucket, state, now)
        need = min(amount(bucket.unit, cost), bucket.capacity)
        if fill.level < need:
            yield _wait_s(bucket, need - fill.level, now), bucket.name
        elif bucket.paced and fill.next_at > now:
            fill.next_at = min(fill.next_at, now + need / bucket.pace(fill.level))
            yield fill.next_at - now, bucket.name


def _wait_s(bucket: Bucket, missing: float, now: float) -> float:
    """Return how long it takes until `missing` has been refilled."""
    seconds = min(MAX_WAIT_S, missing / max(1e-9, bucket.net_refill_per_s))
    full_at = bucket.next_full_at(now)
    return min(seconds, full_at - now) if full_at > 0.0 else seconds


def _paced_until(params: Parameters, state: EnforcementState) -> float:
    """Return until when the grants so far fill the schedule at the present pace; a former slower pace is forgotten."""
    return min(state.paced_until, state.last_sent_at + params.burst_s + params.pace_s * (1.0 + params.pace_jitter))


def _refilled(bucket: Bucket, state: EnforcementState, now: float) -> Fill:
    """Return the bucket's fill at `now`, re-dated first if the governor has a newer snapshot.

    Rules: full again since it was last looked at, and since the snapshot -> full; a new snapshot that is not from
    before that -> its level; what has refilled is added.
    """
    fill = state.fills.get(bucket.name)
    if fill is None:
        fill = state.fills[bucket.name] = Fill(bucket.capacity, now, -1, bucket.credit)
    net = bucket.refill_per_s - bucket.drain_per_s
    full_at = bucket.last_full_at(now)
    if full_at > fill.full_at:
        fill.full_at = full_at
        if full_at > bucket.dated_at:
            fill.level, fill.at = bucket.capacity, now
    if fill.snapshot != bucket.snapshot:
        fill.snapshot = bucket.snapshot
        if bucket.snapshot > 0 and bucket.dated_at >= fill.full_at:
            since = amount(bucket.unit, state.spent.get(bucket.model, NOTHING)) - bucket.spent
            dated = min(bucket.capacity, bucket.level + net * (now - bucket.dated_at))
            fill.level = min(bucket.capacity, dated - since)  # the counters may have begun anew since
            fill.at = now
    fill.level = max(fill.level, min(bucket.capacity, fill.level + net * max(0.0, now - fill.at)))
    fill.level += bucket.credit - fill.credit
    fill.credit = bucket.credit
    fill.at = now
    return fill


def _reservation(params: Parameters, request: CallRequest) -> Cost:
    scale = params.token_scale
    return Cost(1.0, request.input_tokens * scale, request.output_tokens * scale)


def _take(params: Parameters, state: EnforcementState, request: CallRequest, sent: Sent) -> None:
    now, cost = sent.at, _reservation(params, request)
    if sent.probe:
        state.probe, state.probed_break, state.probe_until = request.call, params.break_number, now + params.probe_s
    for bucket in params.buckets:
        if bucket.model not in ("", request.model):
            continue
        fill = _refilled(bucket, state, now)
        taken = amount(bucket.unit, cost)
        fill.level -= taken
        if bucket.paced:
            fill.next_at = max(fill.next_at, now - CATCH_UP_S) + taken / bucket.pace(fill.level)
    if params.pace_s > 0:
        spacing = params.pace_s * (1.0 + params.pace_jitter * request.jitter)
        state.paced_until = max(_paced_until(params, state), now) + spacing
    state.last_sent_at = now
    state.held_by = ""
    spent = _add(state.spent.get(request.model, NOTHING), cost)
    state.spent[request.model] = spent
    if request.model:
        state.spent[""] = _add(state.spent.get("", NOTHING), cost)
    state.leased_until[request.model] = max(state.leased_until.get(request.model, 0.0), now + request.lease_s)
    standing = state.projects[request.project]
    standing.open += 1
    standing.service += (1.0 + cost.input_tokens + cost.output_tokens) / params.weights.get(request.project, 1.0)
    state.leases[request.call] = LeaseRecord(
        request.project,
        request.model,
        now,
        sent.open_before,
        cost,
        request.input_tokens + request.output_tokens,
        spent,
        now + request.lease_s,
        sent.probe,
    )


def release(params: Parameters, state: EnforcementState, call: str, outcome: CallOutcome, now: float) -> Done | None:
    """Give a lease back with its outcome; returns None if it no longer exists (expired, or given back before).

    Tokens are settled to what was used, if the provider reported it; a call without an answer used none. Requests are
    never given back: failed calls count at most providers.
    """
    lease = state.leases.get(call)
    if lease is None:
        return None
    _remove(state, call)
    if call == state.probe:
        state.probe_until = min(state.probe_until, now + PROBE_HEARD_S)
    done = Done(
        call=call,
        at=now,
        sent_at=lease.sent_at,
        open_before=lease.open_before,
        status=outcome.status,
        model=lease.model,
        spent=lease.spent,
        estimated_tokens=lease.estimated_tokens,
        used=outcome.used,
        readings=outcome.readings,
        reporter=outcome.reporter,
        probe=lease.probe,
    )
    _settle(params, state, lease, done)
    if done.was_refused and lease.sent_at > params.counts_after:
        obey(params, state)
        state.refusals += 1
        state.refused += 1
        state.refused_at, state.refused_sent_at = now, max(state.refused_sent_at, lease.sent_at)
        for bucket in params.buckets:
            if bucket.credit != 0 and bucket.name in state.fills:
                state.fills[bucket.name].level = min(state.fills[bucket.name].level, 0.0)
    return done


def _settle(params: Parameters, state: EnforcementState, lease: LeaseRecord, done: Done) -> None:
    reserved, used = lease.reserved, done.used
    usage_known = used.input_tokens + used.output_tokens > 0
    if done.ok and not usage_known:
        return
    given_back = Cost(
        0.0,
        reserved.input_tokens - (used.input_tokens if done.ok else 0.0),
        reserved.output_tokens - (used.output_tokens if done.ok else 0.0),
    )
    for model in {lease.model, ""}:
        if model in state.spent:
            state.spent[model] = _add(state.spent[model], given_back, -1.0)
    for bucket in params.buckets:
        if bucket.model in ("", lease.model) and bucket.name in state.fills:
            fill = state.fills[bucket.name]
            fill.level = min(max(bucket.capacity, fill.level), fill.level + amount(bucket.unit, given_back))


def _expired(state: EnforcementState, now: float) -> Iterator[str]:
    for call, lease in state.leases.items():
        if lease.expires_at > now:
            return
        yield call


def _remove(state: EnforcementState, call: str) -> None:
    lease = state.leases.pop(call)
    state.projects[lease.project].open -= 1


def _forget_silent(params: Parameters, state: EnforcementState, now: float) -> None:
    """Keep the table of projects bounded: drop those with no open calls and no recent request."""
    for project, standing in list(state.projects.items()):
        if standing.open == 0 and now > standing.asked_at + params.demand_ttl_s:
            del state.projects[project]


def _forget_models(params: Parameters, state: EnforcementState, now: float) -> None:
    """Keep the table of models bounded: drop those that no bucket needs and that have no open call."""
    if now < state.swept_at + SWEEP_S:
        return
    state.swept_at = now
    needed = {"", *(bucket.model for bucket in params.buckets)}
    for model in set(state.spent) - needed:
        if state.leased_until.get(model, 0.0) < now:
            del state.spent[model]
            state.leased_until.pop(model, None)


def _add(a: Cost, b: Cost, sign: float = 1.0) -> Cost:
    return Cost(
        a.requests + sign * b.requests,
        a.input_tokens + sign * b.input_tokens,
        a.output_tokens + sign * b.output_tokens,
    )


def _ms(seconds: float) -> int:
    """Convert to whole milliseconds, rounded up, so that a retry then is not too early."""
    return math.ceil(seconds * 1000.0 - 1e-6)
