"""The default engine: finds the capacity, keeps it full, and sees few refusals.

Feedback in the time of a refusal (`calls`), growth in confirmed steps (`growth`), verdicts on episodes of refusals
(`verdict`), a learned rate (`rate`), the providers' own budgets (`buckets`), latency (`latency`) and a breaker.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from workers.policy import breaker as breakers
from workers.policy.breaker import Breaker, BreakerConfig
from workers.policy.buckets import Budget
from workers.policy.calls import NEVER, CallLog, Trial
from workers.policy.events import OVERLOADED, Done, Sent
from workers.policy.growth import Growth
from workers.policy.headers import Unit
from workers.policy.latency import LatencyWatch
from workers.policy.parameters import Bucket
from workers.policy.rate import NAME as RATE_BUCKET
from workers.policy.rate import LearnedRate
from workers.policy.verdict import Kind, VerdictConfig, episode_start, is_enough, judge, ceiling_of


import os
X = float(os.environ.get('X','0'))


@dataclass(frozen=True, slots=True)
class AdaptiveConfig:
    """Constants of the default engine; `*_rtts` are in smoothed round trips, `*_s` in seconds."""

    start: float = 10.0
    slow_start_factor: float = 1.5
    hold_min_rtts: float = 1.0
    hold_max_rtts: float = 6.0
    rate_interval_max_rtts: float = 6.0
    feedback_first_s: float = 1.0
    feedback_min_s: float = 0.5
    feedback_max_s: float = 15.0
    rtt_first_s: float = 5.0
    pace_gain: float = 2.0
    rate_room: float = 1.5
    trip_failures: int = 5
    latency_tolerance: float = 2.0
    reserve: float = 0.10
    surplus_gain: float = 1.3
    quantum_gain: float = 0.985
    breaker: BreakerConfig = BreakerConfig()
    verdict: VerdictConfig = VerdictConfig()


@dataclass(slots=True)
class Solo:
    """After a collapse: one unresolved call at a time. `level` was refused; `highest` is the last number refused since."""

    level: int
    slow_start: bool
    highest: int = 0


@dataclass(slots=True)
class Suspect:
    """A single refusal at the very top cost one slot: `level` was refused at `at`."""

    level: int
    at: float


@dataclass
class AdaptiveState:
    growth: Growth
    log: CallLog = field(default_factory=CallLog)
    refusal_latencies: deque[float] = field(default_factory=lambda: deque(maxlen=8))
    rtt_s: float | None = None
    feedback_s: float = 1.0
    judging_since: float | None = None
    episode: float = 0.0
    rate_before: float = 0.0
    rate_suspected_at: float = NEVER
    solo: Solo | None = None
    rate: LearnedRate | None = None
    not_a_rate_until: float = NEVER
    refused_level: int | None = None
    refused_level_at: float = NEVER
    passed_at: float = NEVER
    reversals: int = 0
    reversed_at: float = NEVER
    room_shown_at: float = NEVER
    room_rate: float = 0.0
    budgets: dict[str, Budget] = field(default_factory=dict)
    token_scale: float = 1.0
    latency: LatencyWatch = field(default_factory=LatencyWatch)
    breaker: Breaker = field(default_factory=Breaker)
    failures: int = 0
    failing_since: float | None = None
    limit_at_trip: float = 0.0
    suspect: Suspect | None = None
    noisy_until: float = NEVER
    honest_until: float = NEVER
    reason: str = "start"


class Adaptive:
    """One pool's controller. Feed it events in order, let time pass with `advance`, then read `limit` and kin."""

    def __init__(self, config: AdaptiveConfig, state: AdaptiveState, floor: int, ceiling: int) -> None:
        self.config, self.state, self.floor, self.ceiling = config, state, floor, ceiling

    @staticmethod
    def first_state(config: AdaptiveConfig, floor: int, ceiling: int) -> AdaptiveState:
        return AdaptiveState(Growth(max(float(floor), min(float(ceiling), config.start))), feedback_s=config.feedback_first_s)

    # ------------------------------------------------------------------ what others read

    @property
    def limit(self) -> float:
        return self.state.growth.limit

    @property
    def rtt_s(self) -> float:
        return self.state.rtt_s if self.state.rtt_s is not None else self.config.rtt_first_s

    @property
    def pace_s(self) -> float:
        """Spacing of grants: a quarter faster than the limit turns over, plus the pending step within its feedback."""
        growth = self.state.growth
        per_s = self.config.pace_gain * growth.limit / self.rtt_s
        per_s += growth.step / (self.state.feedback_s * (4.0 if growth.gentle else 1.0))
        return 1.0 / per_s

    @property
    def burst_s(self) -> float:
        growth = self.state.growth
        return 0.0 if growth.cautious else (2.0 + growth.limit / 40.0) * self.pace_s

    def buckets(self) -> list[Bucket]:
        found = [b.bucket(self.config.reserve, self.config.surplus_gain) for b in self.state.budgets.values()]
        if self.state.rate is not None:
            found.append(self.state.rate.bucket())
        return found

    def next_at(self, now: float) -> float | None:
        """When time alone will change something."""
        state, growth = self.state, self.state.growth
        if not state.breaker.closed:
            return state.breaker.until if state.breaker.phase == "open" else None
        if state.judging_since is not None:
            return state.judging_since + state.feedback_s
        last = state.log.last()
        if state.solo is not None:
            return last.sent_at + state.feedback_s if last is not None else None
        times = []
        if state.rate is not None:
            times.append(state.rate.next_at(self.rtt_s, state.feedback_s))
        if growth.pending:
            at = growth.confirmed_at(state.feedback_s)
        elif growth.limit < self.ceiling and not state.latency.hot:
            at = growth.next_step_at(state.feedback_s, self.rtt_s)
        else:
            at = None
        if at is not None:
            times.append(at)
        return min(times, default=None)

    # ------------------------------------------------------------------ events

    def sent(self, event: Sent) -> None:
        state = self.state
        state.log.sent(event)
        state.latency.sent(event.at, state.growth.limit)
        if event.probe:
            state.breaker = breakers.probe_sent(state.breaker, event.call, event.at)
        if state.rate is not None and event.held_by == RATE_BUCKET:
            state.rate.bound_at = event.at
        if event.limit >= int(state.growth.limit) and event.open_before + 1 >= event.limit:
            state.growth.filled(event.at)
        state.log.forget(event.at - max(10.0, 8.0 * self.rtt_s))

    def done(self, event: Done) -> None:
        state, now = self.state, event.at
        trial = state.log.answered(event)
        room = self._budgets(event)
        if event.refused:
            state.refusal_latencies.append(event.latency_s)
            slowest = max(state.refusal_latencies)
            state.feedback_s = min(self.config.feedback_max_s, max(self.config.feedback_min_s, 1.3 * slowest))
            if room and event.status != OVERLOADED:
                self._refused_with_room(trial, now)
        elif event.ok:
            state.rtt_s = event.latency_s if state.rtt_s is None else state.rtt_s + 0.05 * (event.latency_s - state.rtt_s)
        self._breaker(event)
        if event.refused and state.breaker.closed:
            self._refused(event, trial, now)
        self._latency(event, now)

    def _budgets(self, event: Done) -> bool:
        """Take the header readings in; True if all of them showed room for this call."""
        state = self.state
        for reading in event.readings:
            name = f"{reading.unit}:{event.model}"
            budget = state.budgets.get(name)
            if budget is None:
                budget = state.budgets[name] = Budget(reading.unit, event.model)
            spent = {
                Unit.REQUESTS: event.spent.requests,
                Unit.INPUT_TOKENS: event.spent.input_tokens,
                Unit.OUTPUT_TOKENS: event.spent.output_tokens,
            }.get(reading.unit, event.spent.input_tokens + event.spent.output_tokens)
            budget.observe(reading, event.sent_at, spent)
        tokens = event.reserved.input_tokens + event.reserved.output_tokens
        used = event.used.input_tokens + event.used.output_tokens
        if event.ok and used > 0 and tokens > 0:
            estimated = tokens / state.token_scale
            state.token_scale += 0.02 * (used / estimated - state.token_scale)
        return bool(event.readings) and all(
            r.remaining > 0.02 * r.limit_per_min + (1.0 if r.unit is Unit.REQUESTS else 2.0 * tokens)
            for r in event.readings
        )

    def _refused_with_room(self, trial: Trial, now: float) -> None:
        """Refused although the headers show room: per-second quanta, if the last second was as busy as they allow."""
        state = self.state
        advertised = min((b.refill_per_s for b in state.budgets.values() if b.unit is Unit.REQUESTS), default=0.0)
        again = now - state.room_shown_at < 3.0
        state.room_shown_at, state.room_rate = now, advertised
        if state.rate is None and advertised > 0 and again and state.growth.slow_start:
            if state.log.sent_between(trial.sent_at - 1.0, trial.sent_at) >= advertised:
                state.rate = LearnedRate(self.config.quantum_gain * advertised, now, trial.sent_at, now, now)
                state.growth.cut(now, state.growth.limit)
                self._say("per-second quanta")

    def _refused(self, event: Done, trial: Trial, now: float) -> None:
        """A refusal while the breaker is closed.

        Rules, first match wins: sent before the last cut -> old news; a verdict is due -> evidence for it; solo ->
        the single call was too much; a step is pending -> undo it; a rate is being kept -> measure it; at the very
        top -> one less; enough of them -> hold fire for one feedback delay, then judge.
        """
        state, growth, config = self.state, self.state.growth, self.config
        if event.status == OVERLOADED:
            state.not_a_rate_until = max(state.not_a_rate_until, now + 4.0 * self.rtt_s)
            growth.hold_rtts = min(growth.hold_rtts, 2.0)
        if trial.sent_at <= growth.cut_at or state.judging_since is not None:
            return
        if state.solo is not None:
            state.solo.highest = trial.open_before
            growth.cut(now, max(float(self.floor), 0.7 * min(growth.limit, max(1, trial.open_before))))
            return
        after = max(growth.cut_at, now - max(2.0, self.rtt_s))
        if growth.pending and not growth.slow_start and trial.sent_at >= growth.grew_at:
            if event.status != OVERLOADED or sum(t.refused for t in state.log.since(after)) >= 2:
                state.log.explain(growth.grew_at)
                if self._passed_lately(now):
                    growth.cut(now, growth.before)
                    self._keep_rate(self._accepted_lately(now), now)
                    self._say("refused for haste: a rate")
                    return
                if growth.step >= 4.0:
                    state.refused_level, state.refused_level_at = state.log.open_at_provider(trial), now
                if state.suspect is not None and growth.limit >= state.suspect.level:
                    state.suspect, state.honest_until = None, now + 30.0 * self.rtt_s
                growth.undo(now, config.hold_min_rtts, config.hold_max_rtts)
                self._say("step refused")
                return
        if state.rate is not None:
            self._refused_at_rate(trial, now)
            return
        needed = 2 if growth.slow_start else 5 if now < state.noisy_until else 3
        if self._at_frontier(event, trial, now):
            return
        if is_enough(state.log, after, now, state.feedback_s, needed):
            state.rate_before = state.log.sent_between(now - 2.0, now) / 2.0
            state.judging_since = now
            state.episode = episode_start(state.log, max(after, now - 2.0 * state.feedback_s - 1.0))

    def _at_frontier(self, event: Done, trial: Trial, now: float) -> bool:
        """A single refusal at the very top: one less, at once; unless such refusals turned out to be noise lately.

        The slot is tried again after a feedback delay, or, where refusals have been honest lately, after a hold.
        """
        state, growth = self.state, self.state.growth
        if growth.slow_start or now < state.noisy_until or event.status == OVERLOADED:
            return False
        if state.suspect is not None and trial.sent_at <= state.suspect.at:
            return False
        level = state.log.open_at_provider(trial)
        if level < int(growth.limit) - 1 or level < max(1, self.floor):
            return False
        state.suspect = Suspect(level, now)
        good = level if now < state.honest_until else growth.good
        growth.lower(float(level), float(good))
        self._say("refused at the top")
        return False

    def _refused_at_rate(self, trial: Trial, now: float) -> None:
        state, rate = self.state, self.state.rate
        assert rate is not None
        cap = ceiling_of(state.log, rate.started + self.rtt_s, now, state.feedback_s, self.rtt_s)
        if cap is not None:
            state.rate, state.not_a_rate_until = None, now + 3.0 * self.rtt_s
            growth = state.growth
            growth.cut(now, max(float(self.floor), min(growth.limit, float(cap))))
            growth.good = growth.limit
            self._say("a cap after all")
            return
        trial.explained = True
        rate.refused(trial, state.log, now, self.rtt_s, self.config.rate_interval_max_rtts)
        if rate.setbacks >= 6:
            state.rate, state.not_a_rate_until = None, now + 4.0 * self.rtt_s
            self._say("slowing down does not help")

    # ------------------------------------------------------------------ time

    def advance(self, now: float) -> None:
        """Let time pass up to `now`."""
        state, growth = self.state, self.state.growth
        state.breaker = breakers.tick(self.config.breaker, state.breaker, now)
        if not state.breaker.closed:
            return
        if state.judging_since is not None:
            if now >= state.judging_since + state.feedback_s - 1e-9:
                state.judging_since = None
                self._judge(now)
            return
        if state.solo is not None:
            self._solo(now)
            return
        if state.rate is not None:
            if now - state.rate.bound_at > 3.0 * self.rtt_s:
                state.rate = None
                self._say("the limit binds, not the rate")
            else:
                state.rate.advance(state.log, now, self.rtt_s, state.feedback_s)
                growth.lift(min(float(self.ceiling), self.config.rate_room * state.rate.per_s * self.rtt_s))
        if growth.pending:
            at = growth.confirmed_at(state.feedback_s)
            if at is None or now < at - 1e-9:
                return
            growth.confirm(self.config.hold_min_rtts)
            if state.suspect is not None and growth.limit > state.suspect.level:
                if now - state.suspect.at < 3.0 * self.rtt_s:
                    state.noisy_until = now + 30.0 * self.rtt_s
                state.suspect = None
            if self._accepted_again(now):
                return
            if growth.limit >= self.ceiling:
                growth.slow_start = False
        if growth.limit >= self.ceiling or state.latency.hot:
            return
        at = growth.next_step_at(state.feedback_s, self.rtt_s)
        if at is not None and now >= at - 1e-9:
            growth.grow(now, self.ceiling, self.config.slow_start_factor, self.config.hold_min_rtts)

    def _judge(self, now: float) -> None:
        """Act on an episode of refusals."""
        state, growth, config = self.state, self.state.growth, self.config
        may_be_rate = now > state.not_a_rate_until
        recent = now - state.refused_level_at < 2.0 * self.rtt_s
        verdict = judge(
            config.verdict,
            state.log,
            state.episode,
            slow_start=growth.slow_start,
            may_be_rate=may_be_rate,
            below=state.refused_level if recent else None,
        )
        self._say(f"verdict: {verdict.kind}")
        if verdict.kind is Kind.NOISE:
            return
        if verdict.kind is not Kind.RATE and self._passed_lately(now):
            state.log.explain(state.episode)
            growth.cut(now, growth.limit)
            self._keep_rate(self._accepted_lately(state.episode), now)
            self._say("refused for haste: a rate")
            return
        if verdict.kind is Kind.RATE and not growth.slow_start and verdict.refused < 6:
            first, state.rate_suspected_at = state.rate_suspected_at, now
            if now > first + 3.0 * self.rtt_s:
                return
        state.log.explain(state.episode)
        if verdict.kind is Kind.RATE:
            growth.cut(now, growth.limit)
            went = state.log.accepted_per_s(now - 2.0 * state.feedback_s - self.rtt_s, now - state.feedback_s)
            self._keep_rate(0.95 * min(went, state.rate_before * (1.0 - verdict.refused_share)), now)
            return
        level = max(1, verdict.level)
        if verdict.kind is Kind.COLLAPSE:
            growth.good, growth.hold_rtts = 0.0, config.hold_min_rtts
            starting = growth.slow_start or now < growth.slow_start_until + 4.0 * self.rtt_s
            state.solo = Solo(verdict.level, starting)
        else:
            if growth.slow_start:
                growth.retry_gently()
            else:
                growth.double_hold(config.hold_min_rtts, config.hold_max_rtts)
        growth.cut(now, max(float(self.floor), min(growth.limit, level)))
        if verdict.kind is Kind.CAP:
            growth.good = growth.limit
        state.refused_level, state.refused_level_at = verdict.level, now

    def _passed_lately(self, now: float) -> bool:
        return self.state.not_a_rate_until < now < self.state.passed_at + 5.0 * self.rtt_s

    def _accepted_lately(self, now: float) -> float:
        return self.state.log.accepted_between(now - 2.0, now) / 2.0

    def _keep_rate(self, per_s: float, now: float) -> None:
        state = self.state
        if now - state.room_shown_at < 2.0 * self.rtt_s and state.room_rate > 0:
            per_s = max(per_s, self.config.quantum_gain * state.room_rate)
        last = max((t.sent_at for t in state.log.refusals), default=now)
        state.rate = LearnedRate(max(0.2, per_s), now, last, now, now)

    def _solo(self, now: float) -> None:
        """The single call went through: climb back to the last refused number without waiting."""
        state, growth = self.state, self.state.growth
        assert state.solo is not None
        last = state.log.last()
        if last is None or last.sent_at <= growth.cut_at or last.refused or now < last.sent_at + state.feedback_s - 1e-9:
            return
        solo, state.solo = state.solo, None
        if solo.slow_start:
            growth.restart(now, max(growth.limit, solo.level / 2.0), 0.0, self.config.hold_min_rtts)
            return
        growth.good = max(growth.limit, float(solo.highest))
        if state.log.open_at_provider(last) > 0.75 * solo.level:
            self._reversal(now)

    def _accepted_again(self, now: float) -> bool:
        """A confirmed limit well above a level refused lately: then the level was not a cap."""
        state = self.state
        if state.refused_level is None or now - state.refused_level_at >= 20.0 * self.rtt_s:
            return False
        if state.refused_level >= 0.93 * state.growth.limit:
            return False
        if now - state.refused_level_at < 3.0 * self.rtt_s:
            state.passed_at = now
        state.refused_level = None
        return self._reversal(now)

    def _reversal(self, now: float) -> bool:
        """Twice within 20 round trips accepted where everything was refused before: the limit is a rate."""
        state = self.state
        state.reversals = state.reversals + 1 if now - state.reversed_at < 20.0 * self.rtt_s else 1
        state.reversed_at = now
        if state.reversals < 2 or now < state.not_a_rate_until:
            return False
        state.reversals = 0
        went = state.log.accepted_per_s(now - state.feedback_s - 2.0 * self.rtt_s, now - state.feedback_s)
        self._keep_rate(0.97 * went, now)
        state.growth.full_since, state.growth.pending = None, False
        return True

    # ------------------------------------------------------------------ breaker and latency

    def _breaker(self, event: Done) -> None:
        """Trip on consecutive ordinary failures; refusals count only at the floor."""
        state, config, now = self.state, self.config, event.at
        if not state.breaker.closed:
            state.breaker = breakers.probe_answered(config.breaker, state.breaker, event.call, event.ok, now)
            if state.breaker.closed:
                start = max(float(self.floor), min(state.limit_at_trip / 2.0, config.start))
                state.growth.restart(now, start, state.limit_at_trip, config.hold_min_rtts)
                state.latency.forget()
                state.failures, state.failing_since, state.judging_since, state.solo = 0, None, None, None
                self._say("breaker closed")
            return
        if event.failed or (event.refused and state.growth.limit <= self.floor):
            state.failures += 1
            state.failing_since = min(event.sent_at, event.sent_at if state.failing_since is None else state.failing_since)
            if state.failures >= config.trip_failures:
                state.breaker = breakers.trip(config.breaker, state.breaker, now)
                state.limit_at_trip = state.growth.limit
                self._say("breaker opened")
        elif not event.refused and (state.failing_since is None or event.sent_at > state.failing_since):
            state.failures, state.failing_since = 0, None

    def _latency(self, event: Done, now: float) -> None:
        state, growth, config = self.state, self.state.growth, self.config
        asked = state.latency.answered(
            event.sent_at,
            event.latency_s,
            event.ok,
            now=now,
            limit=growth.limit,
            busy=event.open_before > 0.7 * growth.limit,
            rtt_s=self.rtt_s,
            tolerance=config.latency_tolerance,
        )
        if asked is None or not state.breaker.closed:
            return
        if asked > growth.limit:
            good, hold = growth.good, growth.hold_rtts
            growth.cut(now, min(float(self.ceiling), asked))
            growth.good, growth.hold_rtts = good, hold
            self._say("slower, not queueing")
        else:
            growth.cut(now, max(float(self.floor), asked))
            growth.good = 0.0
            growth.double_hold(config.hold_min_rtts, config.hold_max_rtts)
            self._say("queueing")

    def _say(self, reason: str) -> None:
        self.state.reason = reason
