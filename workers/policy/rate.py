"""The learned rate: what to do when the provider bounds calls per second and does not say so.

Where the provider keeps a bucket, it is empty at the instant of each refusal. So between two refusals exactly as many
calls were accepted as refilled: `accepted / time` between them is the rate, to one call in the whole span, however
the calls were spread. Spending runs at that rate. Now and then a few calls more than refill are tried (`credit`):
they use up what was saved by being a little too slow, end in one refusal, and so measure the rate anew. If more go
through than can have been saved, the rate has risen, and is raised in steps until a refusal.

Where the provider counts calls per second instead, nothing is saved, and credit only shows that a second is full.
If credit has been refused at once a few times, small raises of the rate are tried in its place.
"""

from __future__ import annotations

from dataclasses import dataclass

from workers.policy.calls import NEVER, CallLog, Trial
from workers.policy.headers import Unit
from workers.policy.parameters import Bucket

NAME = "learned_rate"
MARGIN_LEAST, MARGIN_MOST, MARGIN_UP, MARGIN_DOWN = -0.005, 0.03, 0.01, 0.0025
RESERVE_MOST = 8.0
RAISE_FIRST, RAISE_LEAST, RAISE_MOST = 0.25, 0.01, 0.5
LOST_CREDITS = 2
"""After so many credits refused at once it is tested whether the provider saves anything."""
SAVED_FOR_TEST = 6.0


@dataclass(slots=True)
class LearnedRate:
    """`per_s` in force since `since`; `anchor` is the send time of the refusal from which the rate is measured.

    `margin` is how much slower than measured to run: more after unprovoked refusals, less after provoked ones.
    `reserve` are the turns sat out after a refusal, so that the provider's bucket is not always at its bottom.
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
    tried_at: float = NEVER
    refused_at: float = NEVER
    raised_from: float | None = None
    sustained: float = 0.0
    raise_by: float = RAISE_FIRST
    keeps: bool = True
    proven: bool = False
    testing: bool = False
    lost_credits: int = 0
    interval_rtts: float = 1.0
    setbacks: int = 0
    setback_at: float = NEVER

    def bucket(self) -> Bucket:
        return Bucket(NAME, Unit.REQUESTS, "", 1.0 + 0.05 * self.per_s, self.per_s, credit=self.credit)

    def refused(self, trial: Trial, log: CallLog, now: float, rtt_s: float, interval_max_rtts: float) -> None:
        """A call was refused although the rate was kept.

        Rules, first match wins: sent before the rate last moved -> says nothing; a raise is being tried -> undo it
        and try half of it next time; far too many lately -> the rate has fallen; enough calls since the anchor ->
        measure.
        """
        last, self.refused_at = self.refused_at, now
        if trial.sent_at <= self.since:
            return
        if self.raised_from is not None:
            steady = self.raise_by <= 2.0 * RAISE_LEAST
            self.interval_rtts = min(2.0 * interval_max_rtts, 2.0 * self.interval_rtts) if steady else 1.0
            self.raise_by = max(RAISE_LEAST, self.raise_by / 2.0)
            self._move(self.raised_from, trial.sent_at, now)
            return
        if self._fell(trial, log, now, rtt_s):
            return
        if self.trying:
            self._learn_keeping(now, rtt_s)
        elif now < last + 2.0 * rtt_s and self.keeps:
            self.reserve = min(RESERVE_MOST, self.reserve + 1.0)
            self.lost_credits = 0
        self.credit -= self.reserve
        self._measure(trial, log, now, rtt_s, interval_max_rtts)

    def _learn_keeping(self, now: float, rtt_s: float) -> None:
        """Credit was refused: does the provider save what is not spent? If in doubt, save a little and try again."""
        if self.testing:
            self.testing, self.proven, self.keeps = False, True, self.trying > 0.5 * SAVED_FOR_TEST
        if self.trying - 1.0 < 0.5 * self.reserve:
            self.reserve = max(0.0, self.reserve - 2.0)
        self.lost_credits = self.lost_credits + 1 if self.trying <= 2.0 else 0
        if self.lost_credits >= LOST_CREDITS and not self.proven:
            self.testing, self.lost_credits = True, 0
            self.credit -= SAVED_FOR_TEST

    def _fell(self, trial: Trial, log: CallLog, now: float, rtt_s: float) -> bool:
        """Whether too many were refused lately for a random walk; then the rate is what was accepted meanwhile."""
        recent = list(log.since(max(self.since, trial.sent_at - max(1.5, 12.0 / self.per_s))))
        refused = [other.sent_at for other in recent if other.refused]
        if len(refused) < 3 or len(refused) < 0.2 * len(recent):
            return False
        self.setbacks = self.setbacks + 1 if now - self.setback_at < 2.0 * rtt_s else 1
        self.setback_at = now
        first = min(refused)
        went = sum(1 for other in recent if not other.refused and other.sent_at > first)
        went_per_s = went / max(0.4, 4.0 / self.per_s, trial.sent_at - first)
        least = 0.25 if len(refused) >= 0.4 * len(recent) else 0.93
        least_per_s, self.sustained = max(least * self.per_s, min(self.sustained, 0.97 * self.per_s)), 0.0
        self._move(max(least_per_s, min(0.97 * self.per_s, went_per_s)), trial.sent_at, now)
        self.interval_rtts = 1.0
        return True

    def _measure(self, trial: Trial, log: CallLog, now: float, rtt_s: float, interval_max_rtts: float) -> None:
        span = trial.sent_at - self.anchor
        accepted = log.accepted_between(self.anchor, trial.sent_at)
        if span < rtt_s or accepted < 12:
            return
        measured = self.per_s + min(1.0, span / (3.0 * rtt_s)) * (accepted / span - self.per_s)
        if self.trying:
            if self.trying > 1.0:
                measured = max(measured, self.per_s)
            steady = abs(measured / self.per_s - 1.0) < 0.03
            self.interval_rtts = min(interval_max_rtts, 2.0 * self.interval_rtts) if steady else 1.0
            self.margin = max(MARGIN_LEAST, self.margin - MARGIN_DOWN)
            self.raise_by = RAISE_FIRST if self.keeps else min(self.raise_by, 0.05)
        else:
            measured = min(measured, self.per_s)
            self.margin = min(MARGIN_MOST, self.margin + MARGIN_UP)
        self._move(max(0.5 * self.per_s, measured * (1.0 - self.margin)), trial.sent_at, now)

    def advance(self, log: CallLog, now: float, rtt_s: float, feedback_s: float) -> None:
        """Try more than the rate, when it is time to and the rate is what holds the traffic."""
        if now < self.next_at(rtt_s, feedback_s):
            return
        window = max(rtt_s, 8.0 / self.per_s)
        going = log.accepted_per_s(now - feedback_s - window, now - feedback_s)
        fresh = not self.trying and self.raised_from is None
        if fresh and going < 0.9 * self.per_s and not self.testing:
            self.tried_at = now - (self.interval_rtts - 0.2) * rtt_s
            return
        self.tried_at = now
        if self.keeps and self.raised_from is None:
            saved = 3.0 + 0.10 * self.per_s * max(0.0, now - self.anchor)
            if self.trying <= saved:
                step = 1.0 if self.trying < 4.0 else self.trying / 2.0
                self.trying += step
                self.credit += step
                return
        if fresh or self.trying:
            self.sustained, self.trying = self.per_s, 0.0
        self.raised_from, self.since = self.per_s, now
        room = 1.3 * going + 4.0 / rtt_s
        self.per_s = max(self.per_s, min(self.per_s * (1.0 + self.raise_by), room))
        if not fresh:
            self.raise_by = min(RAISE_MOST, 1.5 * self.raise_by)
        if not self.keeps and self.per_s > 1.1 * self.sustained:
            self.keeps, self.proven = True, False

    def next_at(self, rtt_s: float, feedback_s: float) -> float:
        """When `advance` will do something."""
        if self.testing and not self.trying:
            return self.refused_at + SAVED_FOR_TEST / self.per_s + feedback_s
        if self.raised_from is not None:
            return self.tried_at + (2.0 * feedback_s if self.keeps else max(2.0 * feedback_s, rtt_s))
        if self.trying:
            return self.tried_at + feedback_s
        return max(self.tried_at + self.interval_rtts * rtt_s, self.refused_at + min(self.interval_rtts, 1.5) * rtt_s)

    def _move(self, per_s: float, anchor: float, now: float) -> None:
        self.per_s, self.since, self.anchor = max(0.2, per_s), now, anchor
        self.trying, self.raised_from = 0.0, None
