"""What the default engine demands of the enforcer, and when it is due again: derived from its state."""

from __future__ import annotations

from dicast.workers.policy.adaptive_config import AdaptiveConfig
from dicast.workers.policy.adaptive_state import AdaptiveState
from dicast.workers.policy.engines import Directives
from dicast.workers.policy.parameters import BreakerPhase
from dicast.workers.policy.timescales import Timescales


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
    step_s = feedback_s * (config.gentle_factor if growth.gentle else 1.0)
    return 1.0 / (config.pace_gain * growth.limit / timescales.rtt_s + growth.step / step_s)


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
    if state.single_calls is not None:
        last = state.log.last()
        return None if last is None else last.sent_at + timescales.feedback_s
    budgets_at = state.told.next_at(now, state.log, timescales.feedback_s)
    times = [] if budgets_at is None else [budgets_at]
    if state.rate is not None and state.noise.test is None:
        times.append(state.rate.next_at(timescales.rtt_s, timescales.feedback_s))
    step_at = None
    if growth.pending:
        step_at = growth.confirmed_at(timescales.feedback_s)
    elif growth.limit < ceiling and not state.latency.hot:
        step_at = growth.next_step_at(timescales.feedback_s, timescales.rtt_s)
    if step_at is not None:
        times.append(step_at)
    return min(times, default=None)
