"""What the default engine's evidence says. These functions read its state and change nothing."""

from __future__ import annotations

from dicast.workers.policy.adaptive_config import AdaptiveConfig
from dicast.workers.policy.adaptive_state import AdaptiveState
from dicast.workers.policy.calls import LoggedCall
from dicast.workers.policy.diagnosis import Diagnosis, judge, wander
from dicast.workers.policy.rate import LearnedRate

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
        below=None if starting else state.accepted_later.below(now, state.timescales.rtt_s),
        noise=state.noise.share,
    )


def busy_as_advertised(state: AdaptiveState, trial: LoggedCall) -> float:
    """Return the advertised calls per second, if about as many were accepted in the second before that call; else 0."""
    per_s = state.told.room_per_s
    per_s = max(per_s % 1.0, per_s // 1.0)
    accepted = state.log.accepted_between(trial.sent_at - 1.0, trial.sent_at)
    return per_s if int(per_s) <= accepted <= 2.0 * per_s + 2.0 else 0.0


def hidden_cap(state: AdaptiveState, rate: LearnedRate, trial: LoggedCall, now: float) -> int | None:
    """Return the cap on open calls that many tries of the rate have revealed; None if there is none."""
    log, timescales = state.log, state.timescales
    level = max(1, log.open_at_provider(trial))
    numbers = [
        log.open_at_provider(other)
        for other in log.since(rate.started + timescales.rtt_s)
        if not other.was_refused and other.sent_at < now - timescales.feedback_s
    ]
    alike = rate.is_alike(level, wander(level), numbers, timescales.rtt_s, now)
    return level if alike or rate.is_early(trial, log) else None


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
    if now < state.overloaded_at + config.memory_rtts * timescales.rtt_s:
        return config.hold_max_rtts
    if timescales.feedback_s > SOON_PART * timescales.rtt_s:
        return max(config.hold_max_late_rtts, config.calls_per_probe / growth.limit)
    calls = config.calls_per_probe_settled if growth.settled else config.calls_per_probe
    return max(config.hold_max_rtts, calls / growth.limit)
