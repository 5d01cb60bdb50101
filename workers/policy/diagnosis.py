"""Diagnoses an episode of refusals: a cap, a rate, a collapse, or noise.

A cap on open calls separates accepted from refused calls by the number open at each send. A rate does not: calls pass
and fail at the same number. In a collapse almost everything is refused, at levels well below those that were accepted a
moment ago. Refusals that are rare and happen at any level are noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dicast.workers.policy.calls import CallLog, LoggedCall

BLUR = 0.10
"""The burst of a step in slow start blurs the order of arrival: up to a tenth more is not clearly above."""

NOISY = 2.5
"""Up to this many times the known noise, refusals mixed with accepted calls may still be noise."""


class Cause(StrEnum):
    NOISE = "noise"
    CAP = "cap"
    RATE = "rate"
    COLLAPSE = "collapse"


@dataclass(frozen=True, slots=True)
class DiagnosisConfig:
    """Shares are 0..1.

    noise_share     unexplained refusals below this part of the log, and fewer than `noise_lately` in the last 60
                    calls, may be chance; in slow start, below `noise_starting` of the episode's calls: a bucket that is
                    empty refuses most of what grows on
    rate_share      accepted among the calls at the usual refused number: above, it is no cap
    collapse_share  refused part of the episode that may be a collapse ...
    collapse_below  ... if it lies below this part of what was held before (in slow start, where a burst blurs the
                    order of arrival, below `collapse_below_starting`)
    least_calls     fewer prove nothing
    """

    noise_share: float = 0.04
    noise_lately: int = 6
    noise_starting: float = 0.15
    rate_share: float = 0.55
    collapse_share: float = 0.60
    collapse_below: float = 0.95
    collapse_below_starting: float = 0.80
    least_calls: int = 5


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A diagnosis. `level` is the number of open calls at which refusals begin."""

    kind: Cause
    level: int


@dataclass(frozen=True, slots=True)
class _Episode:
    """The calls of an episode as (number open at the provider, refused). `levels` are the refused numbers in order."""

    calls: list[tuple[int, bool]]
    levels: list[int]

    @property
    def accepted(self) -> int:
        return len(self.calls) - len(self.levels)


def judge(
    config: DiagnosisConfig,
    log: CallLog,
    start: float,
    *,
    starting: bool,
    may_be_rate: bool,
    below: int | None,
    noise: float = 0.0,
    overloaded: bool = False,
) -> Diagnosis:
    """Judge the calls sent since `start`, all of which are resolved (a feedback delay has passed).

    `starting` says that slow start goes on, or ended a moment ago. `noise` is the share of calls that is known to be
    refused whatever the load; `overloaded` that the provider said so of itself.

    Rules, first match wins: in an overload, accepted where others were refused -> noise; accepted where a cap would
    refuse, or the level fell again since `below` -> a rate (noise, if such refusals are rare, or at the start few of
    the episode's calls); not many more than the known noise -> noise; most refused, below what was held -> collapse;
    else a cap, at the least refused number (at the start at the lower quartile, for one of them may be noise; the
    median, if some are).
    """
    calls = [
        (log.open_at_provider(trial), trial.was_refused)
        for trial in log.trials
        if trial.sent_at >= start and not trial.forgiven
    ]
    episode = _Episode(calls, sorted(number for number, was_refused in calls if was_refused))
    levels = episode.levels
    if not levels:
        return Diagnosis(Cause.NOISE, 0)
    fell = _fell_again(episode, below)
    if overloaded and (fell or _is_wave(config, episode, starting=starting)):
        return Diagnosis(Cause.NOISE, levels[0])
    if fell or (may_be_rate and _is_rate(config, episode, blur=0.0, slack=0)):
        if not starting and _is_rare(config, log):
            return Diagnosis(Cause.NOISE, levels[0])
        if fell or _is_rate(config, episode, blur=BLUR if starting else 0.0, slack=wander(levels[0])):
            few = starting and _are_few(config, episode)
            return Diagnosis(Cause.NOISE if few else Cause.RATE, levels[0])
    if noise and len(levels) < NOISY * noise * len(calls) and _is_rate(config, episode, blur=0.0, slack=0):
        return Diagnosis(Cause.NOISE, levels[0])
    level = levels[len(levels) // 2 if noise else len(levels) // 4 if starting else 0]
    before = [trial for trial in log.trials if not trial.was_refused and trial.sent_at < start]
    highest_accepted = max((log.open_at_provider(trial) for trial in before), default=0)
    below_held = config.collapse_below_starting if starting else config.collapse_below
    most = len(levels) >= config.collapse_share * len(calls) and len(calls) >= config.least_calls
    if most and level + wander(level) < below_held * highest_accepted:
        return Diagnosis(Cause.COLLAPSE, max(1, levels[0]))
    return Diagnosis(Cause.CAP, max(1, level))


def _is_rate(config: DiagnosisConfig, episode: _Episode, *, blur: float, slack: int) -> bool:
    """Return whether calls were accepted at the median refused number, or clearly above the lower quartile of the
    refused numbers. Numbers may be wrong by `slack`, and by the part `blur`."""
    levels = episode.levels
    usual = levels[len(levels) // 2] * (1.0 + blur) + slack
    at_usual = [was_refused for number, was_refused in episode.calls if number >= usual]
    if len(at_usual) >= config.least_calls and at_usual.count(False) >= config.rate_share * len(at_usual):
        return True
    low = levels[len(levels) // 4] * (1.02 + blur) + 2
    above = [was_refused for number, was_refused in episode.calls if number > low]
    return above.count(False) >= max(3.0, 0.25 * len(above))


def _is_wave(config: DiagnosisConfig, episode: _Episode, *, starting: bool) -> bool:
    """Return whether overload refused calls at numbers at which others were accepted: whatever the load."""
    return _is_rate(config, episode, blur=BLUR if starting else 0.0, slack=0)


def _fell_again(episode: _Episode, below: int | None) -> bool:
    """Return whether calls were refused well below a level refused a moment ago, and some accepted: a cap does not
    slide."""
    return below is not None and episode.accepted >= 3 and episode.levels[0] + wander(below) < 0.95 * below


def _are_few(config: DiagnosisConfig, episode: _Episode) -> bool:
    """Return whether so few calls of the episode were refused that it may be chance: an empty bucket refuses most."""
    return len(episode.levels) < config.noise_starting * len(episode.calls)


def _is_rare(config: DiagnosisConfig, log: CallLog) -> bool:
    """Return whether the refusals that no rule acted on are few enough, lately and in the whole log, to be chance."""
    unexplained = [trial.was_refused and not trial.explained for trial in log.trials]
    return sum(unexplained[-60:]) < config.noise_lately and sum(unexplained) < config.noise_share * len(unexplained)


def is_enough(log: CallLog, after: float, now: float, feedback_s: float, needed: int) -> bool:
    """Return whether there are enough refusals since `after` for a diagnosis.

    These are `needed` refusals and 5 % of the resolved calls, or `needed` - 2 of the last sixteen, but three or more.
    """
    total = refusals = recent_refusals = 0
    for trial in log.since(after):
        if trial.forgiven:
            continue
        if trial.was_refused or trial.sent_at < now - feedback_s:
            total += 1
            refusals += trial.was_refused
            if total <= 16:
                recent_refusals = refusals
    return (refusals >= needed and refusals >= 0.05 * total) or recent_refusals >= max(3, needed - 2)


def episode_start(log: CallLog, after: float) -> float:
    """Return the send time of the first refused call sent after `after`; `after` itself if there is none."""
    return min((t.sent_at for t in log.since(after) if t.was_refused and not t.forgiven), default=after)


def wander(level: int) -> int:
    """Return by how much the number open at the provider may differ from ours, since calls and answers are under
    way."""
    return 2 if level >= 20 else 1 if level >= 10 else 0


def ceiling_of(log: CallLog, after: float, now: float, feedback_s: float, rtt_s: float) -> int | None:
    """Return the cap on open calls that explains the refusals since `after`; None if none does.

    The number open wanders with the answers' latencies, and forgets itself within a round trip. Under a rate, calls
    are refused wherever it happens to be; under a cap, hardly any call was ever accepted above the usual refused
    number, and few at it. Needs refusals in three round trips or more: the fewer, the closer together their numbers and
    the further apart their times must be: a rate is tried at its busiest instants, so some refusals have like numbers
    by chance.
    """
    refusals: list[LoggedCall] = []
    for trial in log.trials:
        if (
            trial.was_refused
            and trial.sent_at > after
            and (not refusals or trial.sent_at > refusals[-1].sent_at + rtt_s)
        ):
            refusals.append(trial)
    if len(refusals) < 3 or (len(refusals) < 5 and refusals[-1].sent_at - refusals[0].sent_at < 4.0 * rtt_s):
        return None
    levels = sorted(log.open_at_provider(trial) for trial in refusals)
    level = levels[len(levels) // 2]
    slack = wander(level)
    if levels[-1] - levels[0] > slack * min(2, len(refusals) - 3):
        return None
    accepted = [
        log.open_at_provider(trial)
        for trial in log.since(refusals[0].sent_at)
        if not trial.was_refused and trial.sent_at < now - feedback_s
    ]
    above = sum(1 for number in accepted if number >= level + slack)
    at_level = sum(1 for number in accepted if number >= level)
    refused_there = sum(1 for number in levels if number >= level)
    return max(1, level) if above <= 0.02 * len(accepted) and at_level <= 2 * refused_there else None
