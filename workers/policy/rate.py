"""The learned rate: what to do when the provider bounds calls per second and does not say so.

The provider's bucket is empty at the instant of each refusal. So between two refusals exactly as many calls were
accepted as refilled: `accepted / time` between them is the rate, to one call in the whole span, however the calls
were spread. Spending runs at that rate; now and then a few calls more than refill are tried (`credit`), which uses up
what was saved by being a little too slow, ends in one refusal, and so measures the rate anew. If more goes through
than can have been saved, the rate has risen and is raised in steps until a refusal.
"""

from __future__ import annotations

from dataclasses import dataclass

from workers.policy.calls import NEVER, CallLog, Trial
from workers.policy.headers import Unit
from workers.policy.parameters import Bucket

MARGIN = 0.005
MARGIN_LEAST, MARGIN_MOST, MARGIN_STEP = -0.005, 0.03, 0.01
RESERVE_MOST = 8.0
RAISE_FIRST = 0.25
RAISE_MOST = 0.5
RAISE_LEAST = 0.02
NAME = "learned_rate"


@dataclass(slots=True)
class LearnedRate:
    """`per_s` in force since `since`; `anchor` is the send time of the refusal from which the rate is measured."""

    per_s: float
    since: float
    anchor: float
    bound_at: float
    started: float
    margin: float = MARGIN
    reserve: float = 0.0
    credit: float = 0.0
    trying: float = 0.0
    tried_at: float = NEVER
    refused_at: float = NEVER
    raised_from: float | None = None
    raise_by: float = RAISE_FIRST
    interval_rtts: float = 1.0
    setbacks: int = 0
    setback_at: float = NEVER

    def bucket(self) -> Bucket:
        return Bucket(NAME, Unit.REQUESTS, "", 1.0 + 0.05 * self.per_s, self.per_s, credit=self.credit)

    def refused(self, trial: Trial, log: CallLog, now: float, rtt_s: float, interval_max_rtts: float) -> None:
        """A call was refused although the rate was kept.

        Rules, first match wins: sent before the rate last moved -> says nothing; a raise is being tried -> undo it
        and try half of it next time; enough calls since the anchor -> measure; three refusals that are a tenth of
        all since the last move -> the rate has fallen: go on with what was accepted since.
        """
        last, self.refused_at = self.refused_at, now
        if trial.sent_at <= self.since:
            return
        if self.trying:
            if self.trying - 1.0 < 0.5 * self.reserve:
                self.reserve = max(0.0, self.reserve - 2.0)
        elif now < last + 2.0 * rtt_s:
            self.reserve = min(RESERVE_MOST, self.reserve + 1.0)
        self.credit -= self.reserve
        if self.raised_from is not None:
            self.raise_by = max(RAISE_LEAST, self.raise_by / 2.0)
            self._move(self.raised_from, trial.sent_at, now)
            self.interval_rtts = 1.0
            return
        if self._fell(trial, log, now, rtt_s):
            return
        span = trial.sent_at - self.anchor
        accepted = log.accepted_between(self.anchor, trial.sent_at)
        if span < rtt_s or accepted < 12:
            return
        measured = self.per_s + min(1.0, span / (3.0 * rtt_s)) * (accepted / span - self.per_s)
        if self.trying:
            steady = abs(measured / self.per_s - 1.0) < 0.03
            self.interval_rtts = min(interval_max_rtts, 2.0 * self.interval_rtts) if steady else 1.0
            self.raise_by = RAISE_FIRST if steady else self.raise_by
            self.margin = max(MARGIN_LEAST, self.margin - 0.25 * MARGIN_STEP)
        else:
            measured = min(measured, self.per_s)
            self.margin = min(MARGIN_MOST, self.margin + MARGIN_STEP)
        self._move(max(0.5 * self.per_s, measured * (1.0 - self.margin)), trial.sent_at, now)

    def _fell(self, trial: Trial, log: CallLog, now: float, rtt_s: float) -> bool:
        """Whether too many were refused lately for a random walk; then the rate is what was accepted meanwhile."""
        window = min(rtt_s, max(1.5, 10.0 / self.per_s))
        recent = list(log.since(max(self.since, trial.sent_at - window)))
        refused = [other.sent_at for other in recent if other.refused]
        if len(refused) < 3 or len(refused) < 0.15 * len(recent):
            return False
        self.setbacks = self.setbacks + 1 if now - self.setback_at < 2.0 * rtt_s else 1
        self.setback_at = now
        first = min(refused)
        went = sum(1 for other in recent if not other.refused and other.sent_at > first) / max(0.4, trial.sent_at - first)
        least = 0.25 if len(refused) >= 0.4 * len(recent) else 0.93
        self._move(max(least * self.per_s, min(0.97 * self.per_s, went)), trial.sent_at, now)
        self.interval_rtts = 1.0
        return True

    def advance(self, log: CallLog, now: float, rtt_s: float, feedback_s: float) -> None:
        """Try more than the rate, when it is time to."""
        at = self.next_at(rtt_s, feedback_s)
        if now < at:
            return
        if not self.trying and log.accepted_per_s(now - feedback_s - max(rtt_s, 8.0 / self.per_s), now - feedback_s) < 0.9 * self.per_s:
            self.refused_at = now - 1.5
            return
        saved = 3.0 + 0.10 * self.per_s * max(0.0, now - self.anchor)
        if self.trying <= saved:
            step = 1.0 if self.trying < 4 else self.trying / 2.0
            self.trying += step
            self.credit += step
        else:
            going = log.accepted_per_s(now - feedback_s - max(rtt_s, 4.0 / self.per_s), now - feedback_s)
            self.raised_from = self.per_s
            self.per_s = max(self.per_s, min(self.per_s * (1.0 + self.raise_by), 1.3 * going + self.trying / rtt_s))
            self.raise_by = min(RAISE_MOST, 1.5 * self.raise_by)
            self.since = now
        self.tried_at = now

    def next_at(self, rtt_s: float, feedback_s: float) -> float:
        if self.raised_from is not None:
            return self.tried_at + 2.0 * feedback_s
        if self.trying:
            return self.tried_at + feedback_s
        return max(self.tried_at + self.interval_rtts * rtt_s, self.refused_at + min(self.interval_rtts, 1.5) * rtt_s)

    def _move(self, per_s: float, anchor: float, now: float) -> None:
        self.per_s, self.since, self.anchor = max(0.2, per_s), now, anchor
        self.trying, self.raised_from = 0.0, None
