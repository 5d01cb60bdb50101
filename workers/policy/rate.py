"""The learned rate: how to keep a bound on calls per second that the provider does not report.

Where the provider keeps a bucket, it is empty at the instant of each refusal. So between two refusals exactly as many
calls were taken from it as refilled: `calls / time` between them is the rate, to one call in the whole span, however
the calls were spread. Refused calls are counted, since some providers charge them. Traffic runs at that rate, less a
margin. Now and then a few calls more than refill are tried (`credit`): they use up what was saved by being a little
too slow, end in one refusal, and so measure the rate anew. If more go through than can have been saved, the rate has
risen, and is raised in steps until a refusal.

Where the provider counts calls per second instead, nothing is saved, and credit only shows that a second is full.
If credit was refused at once several times, some calls are saved on purpose and tried: if they are refused too, the
provider does not keep what is not spent, and from then on small raises of the rate are tried in place of credit.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from dicast.workers.policy.calls import NEVER, CallLog, LoggedCall
from dicast.workers.policy.headers import BudgetUnit
from dicast.workers.policy.parameters import Bucket

NAME = "learned_rate"
LEAST_PER_S = 0.2
MARGIN_LEAST, MARGIN_MOST, MARGIN_UP, MARGIN_DOWN = -0.005, 0.03, 0.01, 0.0025
MARGIN_UNKEPT = 0.005
RESERVE_MOST = 8.0
RAISE_FIRST, RAISE_GENTLE, RAISE_LEAST, RAISE_MOST = 0.25, 0.02, 0.01, 0.5
RAISE_MOST_S = 20.0
"""Where calls are counted by the second, a raise is judged once it has made one call more, or after so long."""
LOST_CREDITS = 2
SAVED_FOR_TEST = 6.0
MEASURE_CALLS = 12
ALMOST, BEYOND = 0.995, 1.12
STEADY_PART = 0.03
"""A rate is steady if it is measured again within this part of itself and one call, so that tries may be rarer. It has
moved if it is further off than chance explains. In between, calls may just cost the budget more or less."""
EARLY_PART, EARLY_MOST, EARLY_SHARE = 0.9, 3, 0.02
"""Refusals before a second was as full as reported come by chance, unless there are `EARLY_MOST` beyond this share of
the calls. Then the bound is another one if the second was not full to this part."""
LAST_LIMITS = 20
"""Of so many reported limits the second lowest holds."""
EXCESS_PART, EXCESS_LEAST = 1.2, 3.0
"""If more calls than this pass beyond the reported rate in the course of time, calls are not counted per second: no
second lets more through than it holds."""
BACK_FIRST_S, BACK_MOST_S = 5.0, 80.0
"""The pause before a rate that has fallen below the reported one rises half way back; it doubles if that is refused."""
PAUSE_FIRST_S, PAUSE_FACTOR, PAUSE_MOST_S = 5.0, 4.0, 1280.0


def per_second(rate: float) -> float:
    """Return how many calls a second holds where a provider counts a rate by the second."""
    return max(rate % 1.0, rate // 1.0)


@dataclass(slots=True)
class LearnedRate:
    """A rate `per_s`, in force since `since`, assumed since `started`. `bound_at` is when it last held a call back.

    anchor         send time of the refusal from which the rate is measured
    margin         how much slower than measured to run: more after unprovoked refusals, less after provoked ones
    reserve        turns sat out after a refusal, so that the provider's bucket is not always at its bottom
    credit         calls granted beyond the rate since the start, less those sat out; the enforcer follows it
    trying         credit in the present try, `trying_since`; `tried_at` is the last increase of credit or rate
    raised_from    the rate before the raise that is being tried; `raised_before` that before the one before it;
                   `raise_by` the next raise, as a part
    sustained      a rate known to be fine when the present raises began
    keeps, proven  whether the provider keeps what is not spent, and whether that was tested (`testing`: is being)
    lost_credits   tries in a row that were refused at once
    interval_rtts  wait between tries
    setbacks       falls within two round trips of each other: slowing down does not help
    found_per_s    the rate when it was found
    told_per_s     the rate as reported by the provider (0: none): more is tried only after `pause_s`, which grows,
                   and what it has fallen below it after `back_s`
    excess         calls sent beyond `counted_per_s`, the reported rate, until `went_at`
    early          refusals that came before a second was as full as reported, beyond what chance explains
    full           refusals that came when a second was: it is counted so, and early ones mean that others use it, too
    told_limit     the limit of the reported `budget` that is in force, with which it is `reported_per_s`
    limits         the last ones that were reported
    """

    per_s: float
    since: float
    anchor: float
    bound_at: float
    started: float
    margin: float = 0.005
    reserve: float = 0.0
    credit: float = 0.0
    trying: float = 0.0
    trying_since: float = NEVER
    tried_at: float = NEVER
    refused_at: float = NEVER
    raised_from: float | None = None
    raise_by: float = RAISE_FIRST
    raised_before: float = 0.0
    sustained: float = 0.0
    keeps: bool = True
    proven: bool = False
    testing: bool = False
    lost_credits: int = 0
    interval_rtts: float = 1.0
    setbacks: int = 0
    setback_at: float = NEVER
    found_per_s: float = 0.0
    told_per_s: float = 0.0
    pause_s: float = PAUSE_FIRST_S
    back_s: float = BACK_FIRST_S
    counted_per_s: float = 0.0
    excess: float = 0.0
    went_at: float = 0.0
    early: float = 0.0
    full: int = 0
    budget: str = ""
    told_limit: float = 0.0
    reported_per_s: float = 0.0
    limits: deque[float] = field(default_factory=deque)

    @classmethod
    def starting(cls, per_s: float, anchor: float, now: float) -> LearnedRate:
        per_s = max(LEAST_PER_S, per_s)
        return cls(per_s=per_s, since=now, anchor=anchor, bound_at=now, started=now, found_per_s=per_s)

    @classmethod
    def advertised(
        cls, reported_per_s: float, part: float, now: float, *, budget: str = "", limit: float = 0.0
    ) -> LearnedRate:
        """Return a rate that the provider reports and counts per second, so that nothing is saved and the present
        second is full. Only a `part` of it is used. It is the rate of the reported `budget`, with its present
        `limit`."""
        over, told_per_s = now + 1.0, per_second(reported_per_s)
        per_s = max(LEAST_PER_S, part * told_per_s)
        rate = cls(per_s, over, over, now, now, keeps=False, proven=True, raise_by=RAISE_GENTLE, tried_at=now)
        rate.told_per_s, rate.counted_per_s, rate.went_at = per_s, told_per_s, over
        rate.reported_per_s, rate.budget, rate.told_limit = reported_per_s, budget, limit
        return rate

    def follow(self, limit: float, part: float, now: float) -> None:
        """Take in the `limit` that an answer reports, of which the rate is a constant share.

        The second lowest of the last ones holds: one odd answer changes nothing, and where a gateway reports several
        accounts in turns the least holds.
        """
        if self.told_limit <= 0.0 or limit <= 0.0:
            return
        self.limits.append(limit)
        if len(self.limits) > LAST_LIMITS:
            self.limits.popleft()
        lowest = sorted(self.limits)[:2][-1] if len(self.limits) > 1 else self.told_limit
        if lowest == self.told_limit:
            return
        self.reported_per_s, self.told_limit = self.reported_per_s * lowest / self.told_limit, lowest
        self.counted_per_s = per_second(self.reported_per_s)
        self.told_per_s = max(LEAST_PER_S, part * self.counted_per_s)
        self._move(self.told_per_s, now, now)
        self.excess, self.went_at, self.raised_before, self.sustained = 0.0, now + 1.0, 0.0, 0.0

    @property
    def refuted(self) -> bool:
        """Whether more is accepted than reported, so that calls are not counted per second."""
        if self.told_per_s <= 0.0:
            return False
        return (
            self.raised_before > BEYOND * self.told_per_s
            or self.excess > EXCESS_LEAST + EXCESS_PART * self.counted_per_s
        )

    def on_sent(self, at: float) -> None:
        """Note that a call was sent."""
        self.early = max(0.0, self.early - EARLY_SHARE)
        if self.told_per_s > 0.0 and at >= self.went_at:
            self.excess = max(0.0, self.excess - self.counted_per_s * (at - self.went_at)) + 1.0
            self.went_at = at

    def paused(self, seconds: float) -> None:
        """Note that nothing was sent for so long, which says nothing about whether the rate is the bound."""
        self.bound_at += seconds

    def bucket(self) -> Bucket:
        """Return the bucket for the enforcer. It has next to no depth, or a second could become over-full."""
        return Bucket(NAME, BudgetUnit.REQUESTS, "", 1.0 + 0.05 * self.per_s, self.per_s, credit=self.credit)

    # A refusal

    def on_refused(self, trial: LoggedCall, log: CallLog, now: float, rtt_s: float, interval_max_rtts: float) -> None:
        """Handle a refusal although the rate was kept.

        Rules, first match wins: sent before the rate last moved, or before the first of several raises -> ignored;
        a raise is being tried -> undo it (if the call was sent before it, the one before too, or all where nothing is
        kept) and try half of it next time; far too many lately -> the rate has fallen; else sit out the reserve and, if
        there were enough calls since the anchor, measure.
        """
        last, self.refused_at = self.refused_at, now
        self.excess = max(0.0, self.excess - 1.0)
        if trial.sent_at <= self.since:
            return
        if self.raised_from is not None:
            earlier = self.raised_before if self.keeps else self.sustained
            before = self.raised_from if trial.sent_at > self.tried_at else earlier
            self._undo_raise(before, trial, log, now, rtt_s, interval_max_rtts)
            return
        if self._fell(trial, log, now, rtt_s):
            return
        provoked = self.trying > 0 and trial.sent_at >= self.trying_since
        if provoked:
            self._learn_keeping()
        elif now < last + 2.0 * rtt_s and self.keeps:
            self.reserve, self.lost_credits = min(RESERVE_MOST, self.reserve + 1.0), 0
        self.credit -= self.reserve
        self._measure(trial, log, now, rtt_s, interval_max_rtts, provoked)

    def by_chance(self, trial: LoggedCall, log: CallLog) -> bool:
        """Count a refusal before a second was as full as reported; returns whether the rate has no part in it."""
        if self.told_per_s <= 0.0 or trial.sent_at <= self.started + 1.0:
            return False
        if self._accepted_before(trial, log) >= int(self.counted_per_s):
            self.full += 1
            return False
        self.early += 1.0
        return self.early < EARLY_MOST

    def is_early(self, trial: LoggedCall, log: CallLog) -> bool:
        """Return whether calls go on being refused long before a second is as full as reported. If full seconds have
        been refused as well, the reported rate is real, and others use it."""
        full = self._accepted_before(trial, log) >= EARLY_PART * int(self.counted_per_s) - 1.0
        return self.early >= EARLY_MOST and not full and self.full < EARLY_MOST

    def _accepted_before(self, trial: LoggedCall, log: CallLog) -> int:
        return log.accepted_between(trial.sent_at - 1.1, trial.sent_at)

    def run_at(self, per_s: float, now: float) -> None:
        """Run at another rate than the measured one, which goes on being measured from the same anchor."""
        self._move(per_s, self.anchor, now)

    def _undo_raise(
        self, before: float, trial: LoggedCall, log: CallLog, now: float, rtt_s: float, interval_max_rtts: float
    ) -> None:
        """Return to the rate before the raise; if the provider saves, half way to the average since the anchor.

        Saved calls can sustain a rate that is too high for a while. The average between two empty buckets is never too
        high, but it is too low if the rate has risen in between.
        """
        smallest = self.raise_by <= 2.0 * RAISE_LEAST
        self.interval_rtts = min(2.0 * interval_max_rtts, 2.0 * self.interval_rtts) if smallest else 1.0
        self.raise_by = max(RAISE_LEAST, self.raise_by / 2.0)
        self.pause_s = min(PAUSE_MOST_S, PAUSE_FACTOR * self.pause_s)
        self.back_s = min(BACK_MOST_S, 2.0 * self.back_s)
        calls, span = self._since_anchor(trial, log)
        per_s = before
        if self.keeps and span >= rtt_s:
            average = calls / span
            self.sustained = max(self.sustained, min(before, average))
            per_s = math.sqrt(before * min(before, max(average, 0.5 * before)))
        self._move(per_s, trial.sent_at, now)

    def _fell(self, trial: LoggedCall, log: CallLog, now: float, rtt_s: float) -> bool:
        """Return whether too many were refused lately for a random walk; then the rate becomes what was sent
        meanwhile, refused calls included."""
        recent = list(log.since(max(self.since, trial.sent_at - max(1.5, 12.0 / self.per_s))))
        refusal_times = [other.sent_at for other in recent if other.was_refused]
        if len(refusal_times) < 3 or len(refusal_times) < 0.2 * len(recent):
            return False
        self.setbacks = self.setbacks + 1 if now - self.setback_at < 2.0 * rtt_s else 1
        self.setback_at = now
        first = min(refusal_times)
        calls = sum(1 for other in recent if other.sent_at > first)
        sent_per_s = calls / max(0.4, 4.0 / self.per_s, trial.sent_at - first)
        least = 0.25 if len(refusal_times) >= 0.4 * len(recent) else 0.93
        least_per_s = max(least * self.per_s, min(self.sustained, 0.97 * self.per_s))
        self._move(max(least_per_s, min(0.97 * self.per_s, sent_per_s)), trial.sent_at, now)
        self.interval_rtts, self.sustained, self.testing = 1.0, 0.0, False
        return True

    def _learn_keeping(self) -> None:
        """Learn from refused credit whether the provider keeps what is not spent; if in doubt, save a little and try
        again."""
        if self.testing:
            self.testing, self.proven, self.keeps = False, True, self.trying > 0.5 * SAVED_FOR_TEST
            self.raise_by = RAISE_FIRST if self.keeps else RAISE_GENTLE
        if self.trying - 1.0 < 0.5 * self.reserve:
            self.reserve = max(0.0, self.reserve - 2.0)
        self.lost_credits = self.lost_credits + 1 if self.trying <= 2.0 else 0
        if self.lost_credits >= LOST_CREDITS and not self.proven:
            self.testing, self.lost_credits = True, 0
            self.credit -= SAVED_FOR_TEST

    def _measure(
        self, trial: LoggedCall, log: CallLog, now: float, rtt_s: float, interval_max_rtts: float, provoked: bool
    ) -> None:
        """Move to the average since the anchor: fully if it is certainly lower, else weighted by the length of the
        span."""
        calls, span = self._since_anchor(trial, log)
        if span < rtt_s or calls < MEASURE_CALLS:
            return
        apart = calls / span - self.per_s
        chance = 0.4 / math.sqrt(calls) * self.per_s
        measured = self.per_s + (1.0 if apart < -chance else min(1.0, span / (3.0 * rtt_s))) * apart
        if provoked:
            if self.trying > 1.0:
                measured = max(measured, self.per_s)
            apart, times = abs(measured - self.per_s), 0.0
            if apart < (STEADY_PART + 1.0 / calls) * self.per_s:
                times = 2.0
            elif apart < STEADY_PART * self.per_s + chance:
                times = 0.5
            self.interval_rtts = min(interval_max_rtts, max(1.0, times * self.interval_rtts))
            self.margin = max(MARGIN_LEAST, self.margin - MARGIN_DOWN)
            self.raise_by = RAISE_FIRST if self.keeps else RAISE_GENTLE
        else:
            measured = min(measured, self.per_s)
            self.margin = min(MARGIN_MOST, self.margin + MARGIN_UP)
        margin = self.margin if self.keeps else MARGIN_UNKEPT
        self._move(max(0.5 * self.per_s, measured * (1.0 - margin)), trial.sent_at, now)

    def _since_anchor(self, trial: LoggedCall, log: CallLog) -> tuple[int, float]:
        """Return the calls sent between the anchor, or the log's first call if that is later, and a refusal, which is
        not counted, and the seconds between.

        Refused calls count: some providers charge them, too, and then far fewer than refill are accepted after many
        refusals. Where they are free, the few between two measurements do not matter.
        """
        start = max(self.anchor, log.trials[0].sent_at) if log.trials else self.anchor
        return log.sent_between(start, trial.sent_at) - 1, trial.sent_at - start

    # Time

    def advance(self, log: CallLog, now: float, rtt_s: float, feedback_s: float) -> None:
        """Try more than the rate, when that is due and the rate is what holds the traffic.

        Rules, first match wins: the traffic does not reach the rate -> check again soon; the provider keeps what is
        not spent -> more credit, until more went through than can have been saved; else raise the rate.
        """
        if now < self.next_at(rtt_s, feedback_s):
            return
        window = max(rtt_s, 8.0 / self.per_s)
        going = log.accepted_per_s(now - feedback_s - window, now - feedback_s)
        fresh = not self.trying and self.raised_from is None
        if fresh and going < 0.9 * self.per_s and not self.testing:
            self.tried_at = now - (self.interval_rtts - 0.2) * rtt_s
            return
        self.tried_at = now
        if self.told_per_s and going < 0.9 * self.per_s:
            return
        saved = 3.0 + 0.10 * self.per_s * max(0.0, now - self.anchor) + (SAVED_FOR_TEST if self.testing else 0.0)
        if self.keeps and self.raised_from is None and self.trying <= saved:
            step = 1.0 if self.trying < 4.0 else self.trying / 2.0
            self.trying_since = self.trying_since if self.trying else now
            self.trying += step
            self.credit += step
            return
        self._raise(going, now, rtt_s, first=fresh or self.trying > 0)

    def _raise(self, going: float, now: float, rtt_s: float, *, first: bool) -> None:
        """Raise the rate by one step, not far beyond what is `going` through; the steps grow."""
        if first:
            self.sustained, self.since = self.per_s, now
        going_on = self.raised_from is not None or self.trying > 0
        next_by = min(RAISE_MOST, 1.5 * self.raise_by) if going_on else self.raise_by
        self.raised_before = self.sustained if self.raised_from is None else self.raised_from
        self.raised_from, self.trying = self.per_s, 0.0
        room, is_back = 1.3 * going + 4.0 / rtt_s, self.per_s < ALMOST * self.told_per_s
        if is_back:
            room = min(room, self.told_per_s)
            self.per_s = max(self.per_s, min(0.5 * (self.per_s + self.told_per_s), room))
        else:
            self.per_s, self.back_s = max(self.per_s, min(self.per_s * (1.0 + self.raise_by), room)), BACK_FIRST_S
        self.raise_by = next_by
        if not self.keeps and not is_back and self.per_s > 1.1 * self.sustained:
            self.keeps, self.proven, self.lost_credits = True, False, 0

    def next_at(self, rtt_s: float, feedback_s: float) -> float:
        """Return when `advance` will do something."""
        if self.testing and not self.trying:
            return self.refused_at + SAVED_FOR_TEST / self.per_s + feedback_s
        if self.raised_from is not None:
            if self.keeps:
                return self.tried_at + 2.0 * feedback_s
            more_per_s = max(RAISE_LEAST, self.per_s - self.raised_from)
            return self.tried_at + max(2.0 * feedback_s, rtt_s, min(RAISE_MOST_S, 1.0 / more_per_s))
        if self.trying:
            return self.tried_at + feedback_s
        if self.told_per_s:
            back = self.per_s < ALMOST * self.told_per_s
            return max(self.tried_at, self.refused_at) + (self.back_s if back else self.pause_s)
        return max(self.tried_at + self.interval_rtts * rtt_s, self.refused_at + min(self.interval_rtts, 1.5) * rtt_s)

    def _move(self, per_s: float, anchor: float, now: float) -> None:
        self.per_s, self.since, self.anchor = max(LEAST_PER_S, per_s), now, anchor
        self.trying, self.raised_from = 0.0, None
