"""What each mechanism of the default engine is worth: the same runs with one of them switched off.

A mechanism is switched off from outside, by putting a null in place of the method that acts for it; the policy knows
nothing of this. Only scenarios in which it acts are run without it (`watched`): the others would come out the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple

from dicast.workers.policy import adaptive, diagnosis
from dicast.workers.policy.adaptive import Adaptive
from dicast.workers.policy.adaptive_state import AcceptedLater, Growth, Timescales, TopRefusals
from dicast.workers.policy.breaker import Failures
from dicast.workers.policy.budget import Budget, Nature, Trust
from dicast.workers.policy.budgets import HiddenWindow, ReportedBudgets
from dicast.workers.policy.diagnosis import Cause, Diagnosis
from dicast.workers.policy.headers import NO_READINGS
from dicast.workers.policy.latency import LatencyWatch
from dicast.workers.policy.noise import Noise
from dicast.workers.policy.rate import LearnedRate

Null = tuple[Any, str, Any]
"""Whose attribute, its name, and what stands in its place."""


class Measure(NamedTuple):
    """One run, or the mean of some. Shares are 0..1, `latency` is relative to the oracle's."""

    used: float
    refused: float
    unresolved: float = 0.0
    latency: float = 1.0


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _false(*_: Any, **__: Any) -> bool:
    return False


def _never(value: Any) -> Any:
    return property(lambda _: value)


def _wait_for_answers(self: Timescales, config: Any) -> None:
    self.feedback_s = min(config.feedback_max_s, self.rtt_s)


def _wait_for_refusals(self: Timescales, config: Any) -> None:
    slowest = config.feedback_factor * max(self.refusal_latencies, default=0.0)
    first = config.feedback_min_s if self.refusal_latencies else config.feedback_first_s
    self.feedback_s = min(config.feedback_max_s, max(first, slowest))


def _no_rate(*given: Any, **named: Any) -> Diagnosis:
    return diagnosis.judge(*given, **{**named, "may_be_rate": False, "below": None})


def _no_collapse(*given: Any, **named: Any) -> Diagnosis:
    found = diagnosis.judge(*given, **named)
    return Diagnosis(Cause.CAP, found.level) if found.kind is Cause.COLLAPSE else found


def _untold(self: ReportedBudgets, event: Any, trial: Any) -> bool:
    readings = NO_READINGS._replace(
        retry_after_s=event.readings.retry_after_s, retry_grain_s=event.readings.retry_grain_s
    )
    return _OBSERVE(self, replace(event, readings=readings), trial)


_OBSERVE = ReportedBudgets.observe

MECHANISMS: Mapping[str, tuple[Null, ...]] = {
    "silence is acceptance": ((Timescales, "_bound", _wait_for_answers),),
    "feedback bound by quick answers": ((Timescales, "_bound", _wait_for_refusals),),
    "one slot less at the top": ((Adaptive, "_suspect", _nothing),),
    "a top slot that was noise": ((TopRefusals, "step_confirmed", _nothing),),
    "levels accepted later": ((AcceptedLater, "confirmed", _false), (AcceptedLater, "count_acceptance", _false)),
    "refused levels filled more often": ((Growth, "_was_refused", _never(value=False)),),
    "settled levels tried less often": ((Growth, "settled", _never(value=False)),),
    "small limits tried less often": ((adaptive, "hold_max_rtts", lambda config, *_: config.hold_max_rtts),),
    "former caps": ((Growth, "_remember_cap", _nothing),),
    "a higher cap is tried soon": ((Growth, "may_rise_again", _never(value=False)),),
    "no bursts while a step is tried": ((Growth, "cautious", _never(value=False)),),
    "diagnosis: rate": ((adaptive, "judge", _no_rate),),
    "diagnosis: collapse": ((adaptive, "judge", _no_collapse),),
    "slack for calls under way": ((diagnosis, "wander", lambda _: 0),),
    "rare refusals are noise": ((diagnosis, "_is_rare", _false),),
    "few refusals at the start are noise": ((diagnosis, "_are_few", _false),),
    "a falling level is a rate": ((diagnosis, "_fell_again", _false),),
    "noise: slow test": ((Noise, "suspects", _false),),
    "noise: forgiven": ((Noise, "forgives", _false),),
    "rate: more is tried": ((LearnedRate, "advance", _nothing),),
    "rate: does the provider save": ((LearnedRate, "_learn_keeping", _nothing),),
    "rate: fell": ((LearnedRate, "_fell", _false),),
    "rate: a cap after all": ((adaptive, "ceiling_of", _nothing),),
    "rate: early refusals": ((LearnedRate, "is_early", _false),),
    "rate: refusals by chance": ((LearnedRate, "by_chance", _false),),
    "rate: follows its limit": ((LearnedRate, "follow", _nothing),),
    "rate: more than told passes": ((LearnedRate, "refuted", _never(value=False)),),
    "rate: told per second": ((Adaptive, "_try_quanta", _nothing),),
    "latency": ((LatencyWatch, "observe", _nothing),),
    "latency: a queue at the start": ((LatencyWatch, "_look_for_early_queue", _nothing),),
    "latency: what is needed": ((LatencyWatch, "_learn_needed", _nothing),),
    "breaker": ((Failures, "count", lambda *_, **__: 0),),
    "turned away is refused": ((Adaptive, "_was_turned_away", _false),),
    "waves of overload are borne": ((diagnosis, "_is_wave", _false),),
    "told budgets": ((ReportedBudgets, "observe", _untold),),
    "told: explain refusals": ((ReportedBudgets, "explains", _false),),
    "told: doubt": ((Trust, "passed", _false),),
    "told: logs": ((Nature, "_slide", _nothing),),
    "told: others' drain": ((Budget, "_note_drain", _nothing),),
    "told: a bucket's reserve": ((Budget, "reserve", _never(value=1e-6)),),
    "told: milliseconds": ((Budget, "_in_milliseconds", _false),),
    "told: periods read off": ((Nature, "period_is", lambda self, seconds, within: self.told),),
    "told: lengths from beginnings": ((Nature, "began_apart", _nothing),),
    "told: windows that did not begin": ((Budget, "_find_missed", _nothing),),
    "told: later windows": ((Budget, "_is_later_window", lambda self, told, new: told > self.ends_at + new.blur_s),),
    "hidden windows": ((ReportedBudgets, "names_one_end", _false), (ReportedBudgets, "_hidden_explains", _false)),
    "hidden windows: sized anew": ((HiddenWindow, "_resize", _nothing),),
    "hidden windows: longer ones": ((HiddenWindow, "_is_longer", _false),),
}


@contextmanager
def without(mechanism: str) -> Iterator[None]:
    """Run what is inside with that mechanism off; '' is none. Not for several threads."""
    nulls = MECHANISMS[mechanism] if mechanism else ()
    kept = [(owner, name, owner.__dict__[name]) for owner, name, _ in nulls]
    try:
        for owner, name, null in nulls:
            setattr(owner, name, null)
        yield
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)


def _watching(original: Any, null: Any, acted: Callable[[], None]) -> Any:
    if isinstance(original, property) and original.fget:
        read, usual = original.fget, null.fget(None)

        def get(self: Any) -> Any:
            value = read(self)
            if value != usual:
                acted()
            return value

        return property(get)
    function = original.__func__ if isinstance(original, staticmethod) else original

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        value = function(*given, **named)
        if value or null is not _false:
            acted()
        return value

    return staticmethod(call) if isinstance(original, staticmethod) else call


@contextmanager
def watched() -> Iterator[set[str]]:
    """The mechanisms that act in what is run inside: a yes where the null says no, or a call of what the null omits.

    One that is a constant counts as acting. Not for several threads.
    """
    acting: set[str] = set()
    kept: list[tuple[Any, str, Any]] = []
    try:
        for mechanism, nulls in MECHANISMS.items():
            for owner, name, null in nulls:
                original = owner.__dict__[name]
                if not callable(original) and not isinstance(original, property | staticmethod):
                    acting.add(mechanism)
                    continue
                kept.append((owner, name, original))
                setattr(owner, name, _watching(original, null, functools.partial(acting.add, mechanism)))
        yield acting
    finally:
        for owner, name, original in reversed(kept):
            setattr(owner, name, original)


def loss(on: Measure, off: Measure) -> Measure:
    """By how much everything is worse without a mechanism (below 0: better)."""
    return Measure(
        on.used - off.used, off.refused - on.refused, off.unresolved - on.unresolved, off.latency - on.latency
    )


def losses(measure: Callable[[], Measure], mechanisms: Sequence[str]) -> dict[str, Measure]:
    """What a scenario loses without each of the mechanisms that act in it; `measure` runs it."""
    with watched() as acting:
        on = measure()
    found = {}
    for mechanism in mechanisms:
        if mechanism in acting:
            with without(mechanism):
                found[mechanism] = loss(on, measure())
    return found


def line(mechanism: str, lost: Mapping[str, Measure]) -> str:
    """A row of the table: means over the scenarios in which the mechanism acts, and where it matters most."""
    if not lost:
        return f"| {mechanism} | 0 | | | | | | |"
    most_used, most_refused = (
        max(lost, key=key) for key in (lambda name: lost[name].used, lambda name: lost[name].refused)
    )
    return (
        f"| {mechanism} | {len(lost)}"
        f" | {100 * fmean(one.used for one in lost.values()):+.2f}"
        f" | {100 * lost[most_used].used:+.1f} {most_used}"
        f" | {100 * fmean(one.refused for one in lost.values()):+.2f}"
        f" | {100 * lost[most_refused].refused:+.2f} {most_refused}"
        f" | {sum(one.unresolved for one in lost.values()):+.0f}"
        f" | {fmean(one.latency for one in lost.values()):+.2f} |"
    )


HEAD = (
    "| without | acts in | use lost, points | most | refused more, points | most | unresolved | latency |\n"
    "|---|---|---|---|---|---|---|---|"
)
