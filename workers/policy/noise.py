"""Refusals that do not depend on the load: slowing down gains nothing.

A limit refuses next to nothing when the traffic is well below it. So if calls at a learned rate are still refused, the
traffic is slowed down for a while, and the refusals then are judged by the sequential test of Wald (1945): the same
share as before -> it is noise; hardly any -> the limit is real. Known noise is *forgiven*: as many refusals as it
explains are no evidence of anything; any beyond them are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dicast.workers.policy.calls import LoggedCall

SLOWED = 0.7
"""The speed of the test, as a part of the speed that was refused."""
SUSPECT_SHARE, MOST_SHARE = 0.06, 0.35
"""A refused share of the calls between these two is suspected to be noise; more is a limit."""
SUSPECT_NEW, SUSPECT_OLD = 3.0, 5.0
"""The number of refusals that make a new rate, or an old one, suspect."""
NEW_CALLS = 200
WATCHED_CALLS = 100
REAL_PART = 0.1
"""A real limit would refuse at most this part of the former share when the traffic is slow."""
CAUTION = 0.7
"""The part of the observed share that is tested for, since a few refusals overstate the share."""
NOISE_AT, REAL_AT = 4.6, -2.3
"""Log likelihood ratios at which the test ends: one wrong proof in a hundred, one missed in ten."""
TEST_RTTS = 12.0
"""The longest test: after that, a limit may have moved."""
PATIENCE_CALLS = 400
FORGIVEN, FORGIVEN_AT_ONCE = 1.4, 4.0
"""Refusals forgiven, relative to the known share, and how many may be saved up: chance comes in clusters."""
TRUST_RTTS, TRUST_MOST_RTTS = 30.0, 60.0


@dataclass(slots=True)
class SlowTest:
    """A test with slowed traffic, begun at `since` after the `first` call. `per_s` was the rate before, `share` its
    refused part."""

    since: float
    first: int
    per_s: float
    share: float
    refused: int = 0
    refused_before: float = 0.0
    calls_before: int = 0

    def ratio(self, number: int) -> float:
        """Return the log likelihood ratio of noise over a real limit, for the calls up to the `number`th."""
        accepted = number - self.first - self.refused
        likely = math.log((1.0 - self.share) / (1.0 - REAL_PART * self.share))
        return self.refused * -math.log(REAL_PART) + accepted * likely


@dataclass(slots=True)
class Noise:
    """What is known of noise: `share` of the calls is refused whatever the load, valid `until` then; 0 if none is
    known.

    A rate was found after the `kept`th call. `refused` of the calls since the `watched`th were refused. `test` runs if
    they became suspect; the next test begins `not_before` that call.
    """

    share: float = 0.0
    until: float = 0.0
    trust_rtts: float = TRUST_RTTS
    allowance: float = 0.0
    counted: int = 0
    kept: int = -NEW_CALLS - 1
    watched: int = 0
    refused: float = 0.0
    test: SlowTest | None = None
    not_before: int = 0
    patience: int = PATIENCE_CALLS

    def forgives(self, trial: LoggedCall, now: float) -> bool:
        """Return whether known noise explains this refusal."""
        if not self.share:
            return False
        if now > self.until:
            self.share = 0.0
            return False
        calls = max(0, trial.number - self.counted)
        self.counted = max(self.counted, trial.number)
        self.allowance = min(FORGIVEN_AT_ONCE, self.allowance + calls * FORGIVEN * self.share)
        if self.allowance < 1.0:
            return False
        self.allowance -= 1.0
        return True

    @property
    def rate_was_kept(self) -> bool:
        """Whether a rate has ever been found."""
        return self.kept >= 0

    def rate_kept(self, number: int) -> None:
        """Note that a rate was found after the `number`th call, and is put into force."""
        self.kept = number
        self.watch(number)

    def is_new(self, number: int) -> bool:
        """Return whether the rate was found recently."""
        return number - self.kept <= NEW_CALLS

    def watch(self, number: int) -> None:
        """Start counting again after the `number`th call."""
        self.watched, self.refused, self.test = number, 0.0, None

    def suspects(self, number: int, per_s: float, now: float) -> bool:
        """Note that a call was refused at that rate; returns whether the traffic should slow down for a test."""
        if number - self.watched > WATCHED_CALLS:
            self.watched, self.refused = number - WATCHED_CALLS // 2, self.refused / 2.0
        self.refused += 1.0
        share = (self.refused - 1.0) / max(1, number - self.watched)
        if (
            self.refused < (SUSPECT_NEW if self.is_new(number) else SUSPECT_OLD)
            or not SUSPECT_SHARE <= share <= MOST_SHARE
            or number < self.not_before
        ):
            return False
        self.test = SlowTest(now, number, per_s, CAUTION * share, 0, self.refused, number - self.watched)
        return True

    def proves(self, test: SlowTest, trial: LoggedCall, number: int, now: float, rtt_s: float) -> bool:
        """Note that a call was refused during the test; returns whether that proves the noise."""
        if trial.number <= test.first:
            return False
        test.refused += 1
        calls = number - test.first
        if test.ratio(number) < NOISE_AT or test.refused > MOST_SHARE * calls:
            return False
        self._proven((test.refused_before + test.refused - 1.0) / (test.calls_before + calls), number, now, rtt_s)
        return True

    def _proven(self, share: float, number: int, now: float, rtt_s: float) -> None:
        if now > self.until + self.trust_rtts * rtt_s:
            self.trust_rtts = TRUST_RTTS
        self.share, self.until = share, now + self.trust_rtts * rtt_s
        self.trust_rtts = min(TRUST_MOST_RTTS, 2.0 * self.trust_rtts)
        self.allowance, self.counted, self.patience = FORGIVEN_AT_ONCE, number, PATIENCE_CALLS
        self.watch(number)

    def disproved(self, test: SlowTest, number: int, now: float, rtt_s: float) -> bool:
        """Return whether the test has shown a real limit, or nothing in time; then the next test has to wait."""
        calls = number - test.first
        real = test.ratio(number) <= REAL_AT or (calls >= 10 and test.refused > MOST_SHARE * calls)
        if not real and now < test.since + TEST_RTTS * rtt_s:
            return False
        if real:
            self.not_before = number + self.patience
            self.patience *= 3
        else:
            self.not_before = number + WATCHED_CALLS
        self.watch(number)
        return True
