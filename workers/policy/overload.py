"""Waves of overload: a provider that is short of capacity refuses calls whatever an account's load is.

Fewer open calls do not help against such a wave, so it is borne: with somewhat fewer calls at first, and with as many
as before if only few are refused. When it is over, the limit of before is in force again at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dicast.workers.policy.calls import NEVER, CallLog

OVERLOADED_ENOUGH = 8
"""So many refusals for overload tell whether they depend on the load; fewer are refused at like numbers by chance."""
BORNE_PART, BORNE_RTTS = 0.7, 6.0
"""The limit in a wave, as a part of the one before, and for how long it is assumed to go on."""
BY_CHANCE, CALM_LEAST = 1e-3, 10
"""A wave is over when none was refused for `BORNE_RTTS`, or so many calls in a row were accepted as it lets pass with
this probability; but no fewer than the least."""
FEW_REFUSED = 0.25
"""A wave that refuses a smaller share is borne with as many open calls as before, once fewer have not helped."""
MORE_REFUSED, ALLOWED = 1.25, 5
"""If so many times the wave's share of the calls are refused, and some more, it may be for the load."""


@dataclass(slots=True)
class OverloadWaves:
    """What is known of a provider's overload.

    The last refusal for it came at `refused_at`, after the `refused_call`th call was sent. `limit_before` was the
    limit before the wave that is borne; 0 if there is none. When it was judged last, it refused the part `share` of the
    calls; it is judged again after `borne_until`.
    """

    refused_at: float = NEVER
    refused_call: int = 0
    limit_before: float = 0.0
    share: float = 0.0
    borne_until: float = NEVER

    def note_refusal(self, now: float, sent_total: int) -> None:
        self.refused_at, self.refused_call = now, sent_total

    def was_lately(self, now: float, within_s: float) -> bool:
        """Return whether a call was refused for overload within that time."""
        return now < self.refused_at + within_s

    def bear(self, refused: Sequence[bool], limit: float, now: float, rtt_s: float) -> float:
        """Bear a wave that has `refused` some of these calls; return the limit for the next round trips. `limit` is
        that before the wave, or less."""
        goes_on = self.limit_before > 0.0
        self.limit_before = max(self.limit_before, limit)
        self.share = sum(refused) / max(1, len(refused))
        self.borne_until = now + BORNE_RTTS * rtt_s
        return self.limit_before if goes_on and self.share < FEW_REFUSED else BORNE_PART * self.limit_before

    def explains(self, log: CallLog, since: float, now: float, feedback_s: float) -> bool:
        """Return whether hardly more of the calls sent since then were refused than the wave that is borne would
        refuse."""
        if now >= self.borne_until:
            return False
        refused = [
            trial.was_refused for trial in log.since(since) if trial.was_refused or trial.sent_at < now - feedback_s
        ]
        return sum(refused) <= MORE_REFUSED * self.share * len(refused) + ALLOWED

    def keeps_low(self, now: float) -> bool:
        """Return whether no more calls are to be tried, since the wave refuses many."""
        return now < self.borne_until and self.share >= FEW_REFUSED

    def over_at(self, log: CallLog, feedback_s: float, rtt_s: float) -> float | None:
        """Return when the wave is over, if no more calls are refused; None if none is borne."""
        if not self.limit_before:
            return None
        latest = self.refused_at + BORNE_RTTS * rtt_s
        sent_at = log.nth_sent_at(self.refused_call + self._calm_calls)
        return latest if sent_at is None else min(latest, sent_at + feedback_s)

    @property
    def _calm_calls(self) -> int:
        """How many calls in a row have to be accepted until the wave is over."""
        share = min(0.99, max(0.01, self.share))
        return max(CALM_LEAST, math.ceil(math.log(BY_CHANCE) / math.log(1.0 - share)))

    def end(self, now: float) -> float:
        """Bear the wave no longer; return the limit before it."""
        limit, self.limit_before, self.borne_until = self.limit_before, 0.0, now
        return limit
