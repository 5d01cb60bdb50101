"""What an episode of refusals means: a cap, a rate, a collapse, or noise.

A cap on open calls separates accepted from refused calls by the number open at each send. A rate does not: calls
pass and fail at the same number. A collapse refuses almost everything, far inside the territory held a moment ago.
Refusals that are rare and strike anywhere are noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from workers.policy.calls import CallLog, Trial


class Kind(StrEnum):
    NOISE = "noise"
    CAP = "cap"
    RATE = "rate"
    COLLAPSE = "collapse"


@dataclass(frozen=True, slots=True)
class VerdictConfig:
    noise_share: float = 0.04
    rate_share: float = 0.55
    collapse_share: float = 0.60
    least_calls: int = 5


@dataclass(frozen=True, slots=True)
class Verdict:
    """`level` is the least number open at a refusal, `refused_share` that of the episode."""

    kind: Kind
    level: int
    refused_share: float
    refused: int = 0


def judge(config: VerdictConfig, log: CallLog, start: float, *, slow_start: bool, may_be_rate: bool, below: int | None) -> Verdict:
    """Judge the calls sent since `start`, all of which are resolved (a feedback delay has passed).

    Rules, first match wins: rare over the whole log (after slow start) -> noise; most of those sent at or above the
    median refused number accepted -> rate; most refused, below what was held before -> collapse; else cap.
    """
    episode = [(log.open_at_provider(t), t.refused) for t in log.trials if t.sent_at >= start]
    levels = sorted(n for n, refused in episode if refused)
    if not levels:
        return Verdict(Kind.NOISE, 0, 0.0)
    share = len(levels) / len(episode)
    rare = sum(1 for t in log.trials if t.refused and not t.explained) < config.noise_share * len(log.trials)
    if (may_be_rate and _is_rate(config, episode, levels)) or _fell_again(episode, levels, below):
        if rare and share < 0.25 and not slow_start:
            return Verdict(Kind.NOISE, levels[0], share, len(levels))
        return Verdict(Kind.RATE, levels[0], share, len(levels))
    held = max((t.open_before for t in log.trials if not t.refused and t.sent_at < start), default=0)
    if share >= config.collapse_share and len(episode) >= config.least_calls and levels[0] < 0.95 * held:
        return Verdict(Kind.COLLAPSE, levels[0], share, len(levels))
    return Verdict(Kind.CAP, levels[0], share, len(levels))


def _is_rate(config: VerdictConfig, episode: list[tuple[int, bool]], levels: list[int]) -> bool:
    """Accepted calls where a cap would have refused: at the usual refused number, or clearly above the least one."""
    high = [refused for n, refused in episode if n >= levels[len(levels) // 2]]
    if len(high) >= config.least_calls and high.count(False) >= config.rate_share * len(high):
        return True
    above = [refused for n, refused in episode if n > levels[0] + 2 + 0.02 * levels[0]]
    if above.count(False) >= 3 and above.count(False) >= 0.25 * len(above):
        return True
    return False


def _fell_again(episode: list[tuple[int, bool]], levels: list[int], below: int | None) -> bool:
    accepted = len(episode) - len(levels)
    return below is not None and accepted >= 3 and levels[0] < 0.95 * below


def ceiling_of(log: CallLog, after: float, now: float, feedback_s: float, rtt_s: float) -> int | None:
    """The cap on open calls that explains the refusals since `after`, if one does.

    The number open wanders with the answers' latencies, and forgets itself within a round trip. Under a rate, calls
    are refused wherever it happens to be; under a cap, hardly any call was ever accepted above the usual refused
    number. Needs refusals in five round trips of the log.
    """
    refused: list[Trial] = []
    for trial in log.trials:
        if trial.refused and trial.sent_at > after and (not refused or trial.sent_at > refused[-1].sent_at + rtt_s):
            refused.append(trial)
    if len(refused) < 5:
        return None
    level = sorted(log.open_at_provider(t) for t in refused)[len(refused) // 2]
    accepted = [t for t in log.since(refused[0].sent_at) if not t.refused and t.sent_at < now - feedback_s]
    above = sum(1 for t in accepted if log.open_at_provider(t) > level + 1)
    return level if above <= 0.02 * len(accepted) else None


def is_enough(log: CallLog, after: float, now: float, feedback_s: float, needed: int) -> bool:
    """Whether the refusals since `after` deserve a verdict: `needed` of them and 5 % of all, or a tenth of the last 16."""
    total = refused = last_total = last_refused = 0
    for trial in log.since(after):
        if trial.refused or trial.sent_at < now - feedback_s:
            total += 1
            refused += trial.refused
            if total <= 16:
                last_total, last_refused = total, refused
    if refused >= needed and refused >= 0.05 * total:
        return True
    return last_refused >= 3 and last_refused >= 0.10 * last_total


def episode_start(log: CallLog, after: float) -> float:
    """Send time of the first refused call sent after `after`."""
    return min(t.sent_at for t in log.since(after) if t.refused)


__all__ = ["Kind", "Trial", "Verdict", "VerdictConfig", "ceiling_of", "episode_start", "is_enough", "judge"]
