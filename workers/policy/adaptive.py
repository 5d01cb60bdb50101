"""The default engine: finds the capacity, keeps it full, and sees few refusals.

It reacts within the time of a refusal instead of a round trip (`calls.py`; `Timescales`), grows in confirmed steps
(`Growth`), judges episodes of refusals as cap, rate, collapse or noise (`diagnosis.py`; `AcceptedLater`,
`TopRefusals`), keeps a learned rate (`rate.py`), follows the provider's own budgets (`budgets.py`), watches latency
(`latency.py`) and failures (`breaker.py`). `Adaptive` only decides which of them acts when.

The functions before it read its state and change nothing: what the evidence says, what the engine demands of the
enforcer (`directives`), and when it is due again (`next_at`).
"""

from __future__ import annotations

from dicast.workers.policy import breaker as breakers
from dicast.workers.policy.adaptive_state import AdaptiveConfig, AdaptiveState, SingleCalls, Timescales
from dicast.workers.policy.breaker import Breaker, Failures
from dicast.workers.policy.calls import NO_CONTENT, OVERLOADED, UNAVAILABLE, Done, LoggedCall, Sent
from dicast.workers.policy.diagnosis import Cause, Diagnosis, ceiling_of, episode_start, is_enough, judge
from dicast.workers.policy.engines import Directives
from dicast.workers.policy.noise import SLOWED
from dicast.workers.policy.overload import OVERLOADED_ENOUGH
from dicast.workers.policy.parameters import BreakerPhase
from dicast.workers.policy.rate import MEASURE_CALLS, LearnedRate, per_second
from dicast.workers.policy.rate import NAME as RATE_BUCKET


def directives(config: AdaptiveConfig, state: AdaptiveState, now: float) -> Directives:
    """Return the parameters that follow from the state.

    Grants are held a little longer than a diagnosis takes: its decision comes late, and calls granted in between would
    be granted under the old limit.
    """
    growth, feedback_s, judging = state.growth, state.timescales.feedback_s, state.judging_since
    pace_s = _pace_s(config, state)
    buckets = state.told.buckets(now, state.log)
    if state.rate is not None:
        buckets.append(state.rate.bucket())
    return Directives(
        limit_if_refused=growth.before if growth.pending else growth.limit,
        counts_after=growth.cut_at,
        stop_after=config.stop_after,
        feedback_s=feedback_s,
        hold_until=0.0 if judging is None else diagnosis_at(judging, state.timescales) + config.grace_s,
        single_call_s=0.0 if state.single_calls is None else feedback_s,
        pace_s=pace_s,
        burst_s=_burst_calls(config, state) * pace_s,
        token_scale=state.told.token_scale,
        buckets=tuple(buckets),
    )


def _burst_calls(config: AdaptiveConfig, state: AdaptiveState) -> float:
    """Return how many calls may be sent at once after a pause: a large part of the limit, unless a bound on calls per
    second has ever been found."""
    growth = state.growth
    if growth.cautious:
        return 0.0
    tried = growth.slow_start or state.noise.rate_was_kept
    return 2.0 + growth.limit * (config.burst_part_starting if tried else config.burst_part)


def _pace_s(config: AdaptiveConfig, state: AdaptiveState) -> float:
    """Return the spacing of grants: the limit's turnover with some gain, and the pending step within its feedback
    delay."""
    growth, timescales = state.growth, state.timescales
    feedback_s = timescales.feedback_s if timescales.answered else config.start_s
    return 1.0 / (config.pace_gain * growth.limit / timescales.rtt_s + growth.step / feedback_s)


def wave_over_at(state: AdaptiveState) -> float | None:
    """Return when the wave of overload that is borne is over, if no more calls are refused; None if there is none."""
    return state.overload.over_at(state.log, state.timescales.feedback_s, state.timescales.rtt_s)


def is_kept_low(state: AdaptiveState, now: float) -> bool:
    """Return whether no more calls are tried, since a wave of overload refuses many."""
    return state.overload.keeps_low(now) and state.growth.limit >= state.growth.good


def diagnosis_at(judging_since: float, timescales: Timescales) -> float:
    """Return when every call of the episode is resolved."""
    return judging_since + timescales.feedback_s


def next_at(config: AdaptiveConfig, state: AdaptiveState, ceiling: int, now: float) -> float | None:
    """Return when time alone changes something. The rules are in the order of `Adaptive.advance`."""
    growth, timescales, breaker = state.growth, state.timescales, state.breaker
    if not breaker.closed:
        if breaker.phase is BreakerPhase.OPEN:
            return breaker.until
        return breaker.probe_sent_at + config.breaker.probe_s if breaker.probe else None
    if state.judging_since is not None:
        return diagnosis_at(state.judging_since, timescales)
    budgets_at = state.told.next_at(now, state.log, timescales.feedback_s)
    times = [] if budgets_at is None else [budgets_at]
    if state.single_calls is not None:
        last = state.log.last()
        if last is not None and last.sent_at > growth.cut_at:
            times.append(last.sent_at + timescales.feedback_s)
        return min(times, default=None)
    if state.rate is not None and state.noise.test is None:
        times.append(state.rate.next_at(timescales.rtt_s, timescales.feedback_s))
    calm_at = wave_over_at(state)
    if calm_at is not None:
        times.append(calm_at)
    step_at = None
    if growth.pending:
        step_at = growth.confirmed_at(timescales.feedback_s)
    elif is_kept_low(state, now):
        step_at = state.overload.borne_until
    elif growth.limit < state.latency.most(ceiling) and not state.latency.hot:
        step_at = growth.next_step_at(timescales.feedback_s, timescales.rtt_s, is_told=state.told.is_any_believed)
    if step_at is not None:
        times.append(step_at)
    return min(times, default=None)


START_S = 0.5
"""The shortest time over which a rate is measured."""
SOON_PART = 0.75
"""Refusals that arrive within this part of a round trip count as early."""


def is_starting(config: AdaptiveConfig, state: AdaptiveState, now: float) -> bool:
    """Return whether slow start goes on, or its bursts still blur the evidence."""
    growth = state.growth
    return growth.slow_start or now < growth.slow_start_until + config.starting_rtts * state.timescales.rtt_s


def diagnosis_of(config: AdaptiveConfig, state: AdaptiveState, now: float, *, starting: bool) -> Diagnosis:
    """Diagnose the episode of refusals, of which every call must be resolved."""
    return judge(
        config.diagnosis,
        state.log,
        state.episode,
        starting=starting,
        may_be_rate=now > state.not_a_rate_until,
        overloaded=state.overload.refused_at >= state.episode,
        below=None if starting else state.accepted_later.below(now, state.timescales.rtt_s),
        noise=state.noise.share,
    )


def busy_as_advertised(state: AdaptiveState, rate: float, trial: LoggedCall) -> bool:
    """Return whether about as many calls were accepted in the second before that call as a second of the rate holds."""
    per_s = per_second(rate)
    accepted = state.log.accepted_between(trial.sent_at - 1.0, trial.sent_at)
    return int(per_s) <= accepted <= 2.0 * per_s + 2.0


def accepted_rate(state: AdaptiveState, per_s: float, now: float) -> float:
    """Return the calls accepted per second of late, `per_s` if that is less: a rate that is being raised may be far
    above the limit, and 70 % of it above the limit, too."""
    until = now - state.timescales.feedback_s
    return min(per_s, state.log.accepted_per_s(until - max(state.timescales.rtt_s, MEASURE_CALLS / per_s), until))


def rate_of(state: AdaptiveState, start: float, end: float) -> float:
    """Return the calls accepted per second while calls were refused, at most as many as in the round trip before."""
    log, rtt_s = state.log, state.timescales.rtt_s
    before = log.accepted_between(start - rtt_s, start) / min(rtt_s, max(START_S, start - log.began_at))
    return min(before, max(log.accepted_per_s(start, end), 0.4 * before))


def hold_max_rtts(config: AdaptiveConfig, state: AdaptiveState, now: float) -> float:
    """Return the longest wait between probes.

    A probe costs a refusal, which a small limit takes long to outweigh. The wait is shorter after an overload, which
    passes at once, and where refusals arrive late, so that steps take long anyway.
    """
    growth, timescales = state.growth, state.timescales
    if state.overload.was_lately(now, config.memory_rtts * timescales.rtt_s):
        return config.hold_max_rtts
    if timescales.feedback_s > SOON_PART * timescales.rtt_s:
        return max(config.hold_max_late_rtts, config.calls_per_probe / growth.limit)
    calls = config.calls_per_probe_settled if growth.settled else config.calls_per_probe
    return max(config.hold_max_rtts, calls / growth.limit)


EPSILON_S = 1e-9
_DIAGNOSED = {
    Cause.CAP: "calls are refused above a number of open ones",
    Cause.RATE: "calls are refused above a rate",
    Cause.COLLAPSE: "every call is refused: one at a time until one is accepted",
}


class Adaptive:
    """One pool's engine; see `Engine` for how it is driven."""

    def __init__(self, config: AdaptiveConfig, state: AdaptiveState, floor: int, ceiling: int) -> None:
        self.config, self.state, self.floor, self.ceiling = config, state, floor, ceiling
        self._now = 0.0
        state.latency.target.aim(config.latency_target_s)

    # What it asks for

    @property
    def limit(self) -> float:
        limit, most = self.state.growth.limit, self.state.latency.target.most
        return limit if most is None else min(limit, max(float(self.floor), most))

    @property
    def breaker(self) -> Breaker:
        return self.state.breaker

    def directives(self) -> Directives:
        return directives(self.config, self.state, self._now)

    def next_at(self) -> float | None:
        return next_at(self.config, self.state, self.ceiling, self._now)

    def take_news(self) -> list[str]:
        """Return the findings about reported budgets since the last call."""
        budgets = self.state.told
        news, budgets.news = budgets.news, []
        return news

    # Events

    def sent(self, event: Sent) -> None:
        state, config = self.state, self.config
        before = state.log.last()
        pause_s = 0.0 if before is None else event.at - before.sent_at
        if state.rate is not None and pause_s > state.timescales.feedback_s:
            state.rate.paused(pause_s)
        if pause_s > 2.0 * max(state.timescales.rtt_s, state.timescales.feedback_s):
            state.growth.resumed = True
        state.log.sent(event)
        state.log.forget(event.at - max(config.log_least_s, config.log_rtts * state.timescales.rtt_s))
        state.latency.sent(event.at, state.growth.limit)
        if event.probe:
            state.breaker = breakers.probe_sent(state.breaker, event.call, event.at)
        if state.rate is not None:
            state.rate.on_sent(event.at)
            if event.held_by == RATE_BUCKET:
                state.rate.bound_at = event.at
        cut_lately = event.at < state.growth.cut_at + state.timescales.feedback_s
        if cut_lately and event.limit > max(self.floor, int(state.growth.limit)):
            # The cut was not in force yet: this call still belongs to the old limit.
            state.growth.cut_at = max(state.growth.cut_at, event.at)
        if event.limit >= int(state.growth.limit) and event.open_before + 1 >= event.limit:
            state.growth.filled(event.at)

    def done(self, event: Done) -> None:
        state, now = self.state, event.at
        turned_away = self._was_turned_away(event)
        trial = state.log.record_outcome(event, turned_away=turned_away)
        room = state.told.observe(event, trial)
        if state.rate is not None and state.rate.budget in state.told.known:
            state.rate.follow(state.told.known[state.rate.budget].limit, self.config.quantum_gain, now)
        if trial.was_refused:
            state.timescales.record_refusal(self.config, event)
        elif event.ok:
            state.timescales.record_answer(self.config, event)
        self._watch_failures(event, turned_away)
        if event.was_refused and event.status != OVERLOADED and not state.breaker.closed:
            state.told.hidden.note_refused_probe(trial, state.log)
        if trial.was_refused and state.breaker.closed:
            if event.status != OVERLOADED and state.told.explains(event, trial, state.log, state.timescales.feedback_s):
                trial.explained = trial.forgiven = True
            else:
                if room and event.status != OVERLOADED and state.told.refused_with_room(now):
                    self._try_quanta(trial, now)
                self._handle_refusal(event, trial, now)
        self._watch_latency(event, now)

    def _was_turned_away(self, event: Done) -> bool:
        """Return whether a status that may mean that the provider is full came sooner than any answer could. A provider
        that has only ever sent successes without an answer is not full: it is not one."""
        timescales = self.state.timescales
        may_be = event.status == UNAVAILABLE or (event.status == NO_CONTENT and timescales.answered)
        return may_be and event.latency_s <= timescales.feedback_s

    def _try_quanta(self, trial: LoggedCall, now: float) -> None:
        """Keep the advertised rate, counted per second, if calls are refused with room again during slow start, after a
        second that was as busy as advertised."""
        state = self.state
        name = state.told.tightest_requests()
        if name is None or state.rate is not None or not state.growth.slow_start:
            return
        budget = state.told.known[name]
        if busy_as_advertised(state, budget.refill_per_s, trial):
            state.rate = LearnedRate.advertised(
                budget.refill_per_s, self.config.quantum_gain, now, budget=name, limit=budget.limit
            )
            state.growth.cut(now, state.growth.limit)
            self._set_reason("the advertised rate is counted by the second")

    def _handle_refusal(self, event: Done, trial: LoggedCall, now: float) -> None:
        """A call was refused while the breaker is closed.

        Rules, first match wins:
        sent before the last cut, or a diagnosis is pending -> it only counts as evidence;
        known noise explains it -> it is ignored;
        single calls -> even the single call was too much: 30 % less;
        a step is pending -> undo it (for a 529: on the second refusal);
        a rate is in force -> it is measured again;
        the call used the last slot -> one slot less; and in any case
        enough refusals since the last cut -> hold grants for one feedback delay, then diagnose.
        """
        state, growth = self.state, self.state.growth
        rtt_s, overloaded = state.timescales.rtt_s, event.status == OVERLOADED
        if overloaded:
            state.not_a_rate_until = max(state.not_a_rate_until, now + 4.0 * rtt_s)
            state.overload.note_refusal(now, state.log.sent_total)
            growth.hold_rtts = min(growth.hold_rtts, self.config.overloaded_hold_rtts)
        if trial.sent_at <= growth.cut_at or state.judging_since is not None:
            return
        if overloaded and state.overload.explains(state.log, growth.cut_at, now, state.timescales.feedback_s):
            trial.explained = trial.forgiven = True
            return
        if overloaded and now < state.overload.borne_until:
            state.overload.borne_until = now
            state.log.unforgive(growth.cut_at)
        if (state.rate is None or state.noise.test is None) and state.noise.forgives(trial, now):
            trial.explained = trial.forgiven = True
            return
        if state.single_calls is not None:
            state.single_calls.highest = trial.open_before
            state.single_calls.after_cut = False
            self._cut(now, 0.7 * min(growth.limit, max(1, trial.open_before)))
            return
        after = max(growth.cut_at, now - max(2.0, rtt_s))
        of_step = growth.pending and not growth.slow_start and trial.sent_at >= growth.grew_at
        if of_step and (not overloaded or sum(other.was_refused for other in state.log.since(after)) >= 2):
            self._step_refused(trial, now)
            return
        if state.rate is not None:
            self._rate_refused(state.rate, trial, now)
            return
        if not overloaded:
            self._suspect(trial, now)
        if overloaded:
            needed = OVERLOADED_ENOUGH
        else:
            needed = 2 if growth.slow_start else 5 if now < state.top_refusals.noisy_until else 3
        if is_enough(state.log, after, now, state.timescales.feedback_s, needed):
            state.judging_since = now
            state.episode = max(after, now - 2.0 * state.timescales.feedback_s - 1.0)

    def _step_refused(self, trial: LoggedCall, now: float) -> None:
        """Undo the pending step, exactly."""
        state, growth, config = self.state, self.state.growth, self.config
        state.log.explain(growth.grew_at)
        if growth.large_step:
            state.accepted_later.note_refusal(state.log.open_at_provider(trial), now)
        growth.undo(now, config.hold_min_rtts, hold_max_rtts(config, state, now))
        if growth.settled:
            state.accepted_later.note_cap(now)
        self._set_reason("the last step up was refused")

    def _suspect(self, trial: LoggedCall, now: float) -> None:
        """Give up one slot after a refusal at the very top, unless such refusals have turned out to be noise lately."""
        state, growth, top_refusals = self.state, self.state.growth, self.state.top_refusals
        if growth.slow_start or now < top_refusals.noisy_until:
            return
        if top_refusals.level is not None and trial.sent_at <= top_refusals.at:
            return
        level = state.log.open_at_provider(trial)
        if level < int(growth.limit) - 1 or level < self.floor:
            return
        level = min(level, int(growth.limit))
        top_refusals.note_refusal(level, now)
        growth.lower(now, level)
        self._set_reason("the last call that the limit allowed was refused")

    def _rate_refused(self, rate: LearnedRate, trial: LoggedCall, now: float) -> None:
        """Handle a refusal while a rate is in force: measure the rate again, or find that it was not a rate."""
        state, timescales = self.state, self.state.timescales
        if rate.by_chance(trial, state.log):
            trial.explained = trial.forgiven = True
            return
        cap = ceiling_of(state.log, rate.started + timescales.rtt_s, now, timescales.feedback_s, timescales.rtt_s)
        if cap is None and rate.is_early(trial, state.log):
            cap = max(1, state.log.open_at_provider(trial))
        if cap is not None:
            state.rate, state.not_a_rate_until = None, now + 3.0 * timescales.rtt_s
            self._cut(now, min(state.growth.limit, cap))
            state.growth.good = state.growth.limit
            self._set_reason("calls are refused above a number of open ones, not above a rate")
            return
        trial.explained = True
        if state.noise.test is not None:
            if state.noise.proves(state.noise.test, trial, state.log.sent_total, now, timescales.rtt_s):
                self._noise_proven(now)
            return
        calls_per_rtt = rate.per_s * timescales.rtt_s
        longest = max(self.config.hold_max_rtts, self.config.calls_per_probe / calls_per_rtt)
        calm = not state.overload.was_lately(now, self.config.memory_rtts * timescales.rtt_s)
        doubtful = calm and (state.noise.is_new(state.log.sent_total) or rate.per_s < rate.found_per_s)
        rate.on_refused(trial, state.log, now, timescales.rtt_s, longest)
        accepted_per_s = accepted_rate(state, rate.per_s, now)
        if rate.setback_at == now:
            state.noise.watch(state.log.sent_total)
        elif doubtful and state.noise.suspects(state.log.sent_total, accepted_per_s, now):
            rate.run_at(SLOWED * accepted_per_s, now)
            self._set_reason("slower, to see whether refusals come by chance")
        if rate.setbacks >= 6:
            state.rate, state.not_a_rate_until = None, now + 4.0 * timescales.rtt_s
            self._set_reason("refusals went on however slowly calls were sent")

    def _noise_proven(self, now: float) -> None:
        """Return to the former limit, or go on with slow start: the refusals were noise."""
        state, growth = self.state, self.state.growth
        state.rate, state.not_a_rate_until = None, max(state.not_a_rate_until, state.noise.until)
        growth.retake(now, self.config.hold_min_rtts)
        self._set_reason("refusals come by chance, not from a rate limit")

    # Time

    def advance(self, now: float) -> None:
        """Let time pass.

        Rules, first match wins: breaker not closed -> only its deadlines; a diagnosis is due -> judge; tests of budgets
        go on; single calls -> silence means that the call was accepted. Else the learned rate advances, a filled step
        without a refusal is confirmed, and the next step is taken.
        """
        state, growth, timescales, config = self.state, self.state.growth, self.state.timescales, self.config
        self._now = now
        state.breaker = breakers.tick(config.breaker, state.breaker, now)
        if not state.breaker.closed:
            return
        if state.judging_since is not None:
            if now >= diagnosis_at(state.judging_since, timescales) - EPSILON_S:
                state.judging_since = None
                self._judge(now)
            return
        finding = state.told.advance(now, state.log, timescales.feedback_s)
        if finding:
            self._set_reason(finding)
        unexplained_since = state.told.hidden.take_unexplained()
        if unexplained_since is not None:
            state.episode, state.judging_since = unexplained_since - 1e-6, now
            state.log.unforgive(state.episode)
            return
        if state.single_calls is not None:
            self._single_call_accepted(state.single_calls, now)
            return
        if state.rate is not None:
            self._advance_rate(state.rate, now)
        calm_at = wave_over_at(state)
        if calm_at is not None and now >= calm_at - EPSILON_S:
            growth.uncut(now, max(growth.limit, min(state.overload.end(now), state.latency.most(self.ceiling))))
            self._set_reason("the provider is no longer overloaded")
        if growth.pending and not self._confirm(now):
            return
        if growth.limit >= state.latency.most(self.ceiling) or state.latency.hot:
            return
        if is_kept_low(state, now):
            return
        at = growth.next_step_at(timescales.feedback_s, timescales.rtt_s, is_told=state.told.is_any_believed)
        if at is not None and now >= at - EPSILON_S:
            on_way = growth.limit / timescales.rtt_s * timescales.way_s
            growth.grow(
                now,
                state.latency.most(self.ceiling),
                config.slow_start_factor,
                config.hold_min_rtts,
                on_way,
            )
            self._set_reason(
                "growing fast until a call is refused" if growth.slow_start else "raised, as nothing was refused"
            )

    def _advance_rate(self, rate: LearnedRate, now: float) -> None:
        state, rtt_s = self.state, self.state.timescales.rtt_s
        last = state.log.last()
        if now - rate.bound_at > 3.0 * rtt_s and last is not None and now < last.sent_at + state.timescales.feedback_s:
            state.rate = None
            self._set_reason("the limit allows fewer calls than the rate")
            return
        basis = state.told.known.get(rate.budget)
        if rate.refuted or (basis is not None and not basis.trust.believed):
            state.rate, accepted_level = (
                None,
                max((trial.open_before + 1 for trial in state.log.trials), default=self.floor),
            )
            self._cut(now, min(state.growth.limit, accepted_level))
            self._set_reason("more calls a second are accepted than advertised")
            return
        test = state.noise.test
        if test is None:
            rate.advance(state.log, now, rtt_s, state.timescales.feedback_s)
        elif state.noise.disproved(test, state.log.sent_total, now, rtt_s):
            rate.run_at(test.per_s, now)
            self._set_reason("refusals come from a rate limit, not by chance")
        state.growth.lift(min(self.ceiling, self.config.rate_room * rate.per_s * rtt_s))

    def _confirm(self, now: float) -> bool:
        """Confirm the pending step if it is due; False while it has to wait, or if a rate was found instead."""
        state, growth, rtt_s = self.state, self.state.growth, self.state.timescales.rtt_s
        at = growth.confirmed_at(state.timescales.feedback_s)
        if at is None or now < at - EPSILON_S:
            return False
        growth.confirm(self.config.hold_min_rtts, self.ceiling)
        state.top_refusals.step_confirmed(growth.limit, now, rtt_s, now + self.config.trust_rtts * rtt_s)
        if growth.limit in growth.caps:
            state.accepted_later.note_cap(now)  # it has come back
        if state.accepted_later.confirmed(growth.limit, now, rtt_s, self.config.memory_rtts):
            return not self._was_accepted_later(now)
        return True

    def _judge(self, now: float) -> None:
        """Diagnose the episode, of which every call is resolved, and act on it."""
        state, growth, config = self.state, self.state.growth, self.config
        state.episode = episode_start(state.log, state.episode)
        refusals = [
            trial for trial in state.log.since(state.episode - 1e-6) if trial.was_refused and not trial.forgiven
        ]
        if state.told.names_one_end(refusals, state.log, now):
            for trial in refusals:
                trial.explained = trial.forgiven = True
            self._set_reason("the provider's present window is used up")
            return
        starting = is_starting(config, state, now)
        diagnosis = diagnosis_of(config, state, now, starting=starting)
        if diagnosis.kind is Cause.NOISE:
            if state.overload.refused_at >= state.episode:
                self._bear(now)
            return
        state.log.explain(state.episode)
        if diagnosis.kind is Cause.RATE:
            growth.cut(now, growth.limit)
            self._keep_rate(
                0.95 * rate_of(state, state.episode, now - state.timescales.feedback_s), now, _DIAGNOSED[Cause.RATE]
            )
            return
        state.accepted_later.note_refusal(diagnosis.level, now)
        state.failures.diagnosed(now)
        if diagnosis.kind is Cause.COLLAPSE:
            state.single_calls = SingleCalls(diagnosis.level, starting)
            self._cut(now, min(growth.limit, diagnosis.level))
            growth.good, growth.hold_rtts = 0.0, config.hold_min_rtts
        else:
            if growth.slow_start:
                growth.hold_rtts = 0.0
            else:
                growth.hold_after_cut(diagnosis.level, config.hold_min_rtts, hold_max_rtts(config, state, now))
                if state.overload.refused_at < state.episode:
                    state.single_calls = SingleCalls(diagnosis.level, slow_start=False, after_cut=True)
            self._cut(now, min(growth.limit, diagnosis.level))
            growth.good = growth.limit
        self._set_reason(_DIAGNOSED[diagnosis.kind])

    def _bear(self, now: float) -> None:
        """Go on somewhat more slowly in a wave of overload that refuses whatever the load, and judge it again later.

        If few calls are refused, and fewer open ones have not helped, as many are open again as before the wave.
        """
        state, growth, log = self.state, self.state.growth, self.state.log
        refused = [trial.was_refused for trial in log.since(state.episode - 1e-6)]
        log.explain(state.episode)
        accepted = max((log.open_at_provider(trial) + 1 for trial in log.trials if not trial.was_refused), default=1)
        known = min(growth.limit, max(growth.good, float(accepted)))
        limit = state.overload.bear(refused, known, now, state.timescales.rtt_s)
        if limit >= state.overload.limit_before:
            growth.uncut(now, max(growth.limit, min(limit, state.latency.most(self.ceiling))))
        else:
            self._cut(now, min(growth.limit, limit))
            growth.good = growth.limit
        self._set_reason("the provider says it is overloaded, however few calls are open")

    def _single_call_accepted(self, single_calls: SingleCalls, now: float) -> None:
        """If the single call was accepted, climb back to the last refused number from the number that is known to pass,
        but no less than half of the limit, or go on with slow start."""
        state, growth = self.state, self.state.growth
        last = state.log.last()
        if last is None or last.sent_at <= growth.cut_at or last.was_refused:
            return
        if now < last.sent_at + state.timescales.feedback_s - EPSILON_S:
            return
        state.single_calls = None
        if single_calls.after_cut:
            return
        self._set_reason("a single call is accepted again")
        restored = state.log.open_at_provider(last) > 0.75 * single_calls.level
        if restored and state.accepted_later.count_acceptance(now, state.timescales.rtt_s, self.config.memory_rtts):
            if self._was_accepted_later(now):
                return
        if single_calls.slow_start:
            growth.restart(now, max(growth.limit, single_calls.level / 2.0), 0.0, self.config.hold_min_rtts)
            return
        growth.good = max(growth.limit, single_calls.highest)
        passed = state.log.open_at_provider(last) + 1.0
        growth.cut(now, min(growth.limit, max(passed, growth.limit / 2.0)))

    # Rates

    def _was_accepted_later(self, now: float) -> bool:
        """Keep the accepted rate, since refused levels were accepted for the second time; returns whether a rate may be
        kept."""
        state, timescales = self.state, self.state.timescales
        if now < state.not_a_rate_until:
            return False
        state.accepted_later.count = 0
        went = state.log.accepted_per_s(
            now - timescales.feedback_s - 2.0 * timescales.rtt_s, now - timescales.feedback_s
        )
        self._keep_rate(0.97 * went, now, "numbers of open calls that were refused are accepted later: a rate limit")
        state.growth.forget_step()
        return True

    def _keep_rate(self, per_s: float, now: float, reason: str) -> None:
        state, budgets = self.state, self.state.told
        if now - budgets.room_at < 2.0 * state.timescales.rtt_s:
            per_s = max(per_s, self.config.quantum_gain * budgets.room_per_s)
        state.rate = LearnedRate.starting(per_s, state.log.last_refused_at(now), now)
        state.noise.rate_kept(state.log.sent_total)
        self._set_reason(reason)

    # Failures, latency, clamps

    def _watch_failures(self, event: Done, turned_away: bool) -> None:
        """Open the breaker after enough failures in a row; after a good probe, start slowly towards the limit at the
        trip."""
        state, growth, config, now = self.state, self.state.growth, self.config, event.at
        if state.breaker.closed:
            if state.failures.count(event, growth.limit <= self.floor, turned_away=turned_away) >= config.trip_failures:
                state.breaker = breakers.trip(config.breaker, state.breaker, now)
                state.limit_at_trip = growth.limit
                self._set_reason("too many failures in a row: calls are held back")
            return
        state.breaker = breakers.probe_answered(config.breaker, state.breaker, event.call, event.ok, now)
        if state.breaker.closed:
            start = max(float(self.floor), min(state.limit_at_trip / 2.0, config.start))
            growth.restart(now, start, state.limit_at_trip, config.hold_min_rtts)
            state.overload.limit_before = 0.0
            state.latency.forget()
            state.failures, state.judging_since, state.single_calls = Failures(), None, None
            self._set_reason("a trial call was answered: calls go on")

    def _watch_latency(self, event: Done, now: float) -> None:
        state, growth, config = self.state, self.state.growth, self.config
        new_limit = state.latency.observe(
            event,
            limit=growth.limit,
            rtt_s=state.timescales.rtt_s,
            tolerance=config.latency_tolerance,
            is_waiting=growth.slow_start and not state.told.is_any_believed,
            at_cap=growth.is_at_cap,
        )
        calm = growth.limit if state.told.is_any_believed else state.latency.calm
        growth.answered = max(growth.answered, calm)
        if new_limit is None or not state.breaker.closed:
            return
        if new_limit > growth.limit:
            growth.uncut(now, min(self.ceiling, new_limit))
            self._set_reason("answers became slower, but not because more calls are open")
        elif new_limit == state.latency.target.most:
            if max(self.floor, new_limit) < growth.limit:
                self._cut(now, new_limit)
                self._set_reason("slower than the latency target")
        else:
            self._cut(now, new_limit)
            growth.good = 0.0
            self._set_reason("more open calls only make answers slower")

    def _cut(self, now: float, limit: float) -> None:
        self.state.growth.cut(now, max(float(self.floor), limit))

    def _set_reason(self, reason: str) -> None:
        self.state.reason = reason
