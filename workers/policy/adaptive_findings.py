"""What the default engine's evidence says: read off its state, of which nothing is changed."""

from __future__ import annotations

from dicast.workers.policy.adaptive_config import AdaptiveConfig
from dicast.workers.policy.adaptive_state import AdaptiveState
from dicast.workers.policy.calls import LoggedCall
from dicast.workers.policy.diagnosis import Diagnosis, judge, wander
from dicast.workers.policy.rate import LearnedRate

START_S = 0.5
"""A rate is not measured over less."""
SOON_PART = 0.75
"""Refusals that are heard within such a part of a round trip are heard soon."""


def is_starting(config: AdaptiveConfig, state: AdaptiveState, now: float) -> bool:
    """Whether slow start goes on, or its bursts still blur the evidence."""
    growth = state.growth
    return growth.slow_start or now < growth.slow_start_until + config.starting_rtts * state.timescales.rtt_s


def diagnosis_of(config: AdaptiveConfig, state: AdaptiveState, now: float, *, starting: bool) -> Diagnosis:
    """What the episode of refusals was, of which every call is resolved."""
    return judge(
        config.diagnosis,
        state.log,
        state.episode,
        starting=starting,
        may_be_rate=now > state.not_a_rate_until,
        below=None if starting else state.accepted_later.below(now, state.timescales.rtt_s),
        noise=state.noise.share,
    )


def busy_as_told(state: AdaptiveState, trial: LoggedCall) -> float:
    """Calls a second as told, if as many were accepted in the second before that call, and no more than two seconds
    can hold; else 0."""
    per_s = state.told.room_per_s
    per_s = max(per_s % 1.0, per_s // 1.0)
    accepted = state.log.accepted_between(trial.sent_at - 1.0, trial.sent_at)
    return per_s if int(per_s) <= accepted <= 2.0 * per_s + 2.0 else 0.0


def hidden_cap(state: AdaptiveState, rate: LearnedRate, trial: LoggedCall, now: float) -> int | None:
    """The cap that shows itself in the course of many tries of the rate."""
    log, timescales = state.log, state.timescales
    level = max(1, log.open_at_provider(trial))
    numbers = [
        log.open_at_provider(other)
        for other in log.since(rate.started + timescales.rtt_s)
        if not other.refused and other.sent_at < now - timescales.feedback_s
    ]
    alike = rate.is_alike(level, wander(level), numbers, timescales.rtt_s, now)
    return level if alike or rate.is_early(trial, log) else None


def rate_of(state: AdaptiveState, start: float, end: float) -> float:
    """Calls accepted a second while calls were refused, but not more than in the round trip before."""
    log, rtt_s = state.log, state.timescales.rtt_s
    before = log.accepted_between(start - rtt_s, start) / min(rtt_s, max(START_S, start - log.began_at))
    return min(before, max(log.accepted_per_s(start, end), 0.4 * before))


def hold_max_rtts(config: AdaptiveConfig, state: AdaptiveState, now: float) -> float:
    """A probe costs a refusal, which a small limit takes long to outweigh; but overload passes at once, and where
    refusals are heard late it takes long enough to follow."""
    growth, timescales = state.growth, state.timescales
    if now < state.overloaded_at + config.memory_rtts * timescales.rtt_s:
        return config.hold_max_rtts
    if timescales.feedback_s > SOON_PART * timescales.rtt_s:
        return max(config.hold_max_late_rtts, config.calls_per_probe / growth.limit)
    calls = config.calls_per_probe_settled if growth.settled else config.calls_per_probe
    return max(config.hold_max_rtts, calls / growth.limit)
