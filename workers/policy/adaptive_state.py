"""The constants of the default engine, each with its unit and its reason, and its memory: plain data of bounded size,
stored as JSON."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from dicast.workers.policy.breaker import Breaker, BreakerConfig, Failures
from dicast.workers.policy.budgets import ReportedBudgets
from dicast.workers.policy.calls import NEVER, CallLog, Done
from dicast.workers.policy.diagnosis import DiagnosisConfig
from dicast.workers.policy.latency import LatencyWatch
from dicast.workers.policy.noise import Noise
from dicast.workers.policy.overload import OverloadWaves
from dicast.workers.policy.rate import LearnedRate


@dataclass(frozen=True, slots=True)
class AdaptiveConfig:
    """`*_rtts` are in smoothed round trips (answers' latency), `*_s` in seconds.

    start, start_part      first limit, and as a part of the ceiling if that is more: few ceilings are guessed five
                           times too high, and each step up from less costs a feedback delay ...
    start_most             ... but all of it is sent before the first refusal comes back
    start_part_large       the least first limit as a part of the ceiling: from 20 to 2,000 takes a dozen steps
    start_s                the first calls are spread over so long
    slow_start_factor      growth of the limit per feedback delay; the last step overshoots by as much
    starting_rtts          so long after slow start its bursts still blur the evidence
    hold_min_rtts          wait between probes beyond the known good level, after success ...
    hold_max_rtts          ... and after many failures (`_late`: where refusals are heard late, so that steps take long)
    calls_per_probe        a probe costs a refusal; small limits wait until so many calls outweigh it (`_settled`: where
                           nothing but one level was refused for long)
    overloaded_hold_rtts   longest wait after a 529: overload passes, and capacity comes back at once
    feedback_first_s       time in which a refusal comes back, before any has
    feedback_min_s, max_s  its bounds when measured: `feedback_factor` times the slowest of the last eight
    quick_factor           times the quickest answers is longer than a refusal takes: a bound of it, and of its minimum
    feedback_least_s       whatever is measured: below, the machines' own delays count
    rtt_first_s            an answer's latency, before any has come
    rtt_weight             weight of one answer in the average
    pace_gain              grants a second relative to the limit's turnover: refills fast, without a burst
    burst_part             part of the limit that may be filled at once after a pause (`_starting`: in slow start, and
                           where a rate was found)
    rate_room              limit relative to what a learned rate needs, so that latency may wander
    quantum_gain           part of an advertised rate to use when the provider counts it per second
    memory_rtts            how long a refused level is remembered
    trust_rtts             how long a finding about single refusals that were noise is trusted
    log_rtts, log_least_s  span of the evidence
    trip_failures          consecutive failures that open the breaker
    grace_s                grants are held so much longer than a diagnosis takes, for its decision comes a little late
    stop_after             refusals since the last decision after which the enforcer stops by itself
    latency_tolerance      times the least latency seen that means queueing
    latency_target_s       the operator's target, below which the median latency is kept; None: there is none
    """

    start: float = 10.0
    start_part: float = 0.2
    start_most: float = 20.0
    start_part_large: float = 0.04
    start_s: float = 0.3
    slow_start_factor: float = 1.5
    starting_rtts: float = 4.0
    hold_min_rtts: float = 1.0
    hold_max_rtts: float = 7.0
    hold_max_late_rtts: float = 5.0
    calls_per_probe: float = 110.0
    calls_per_probe_settled: float = 180.0
    overloaded_hold_rtts: float = 3.0
    feedback_first_s: float = 0.8
    feedback_min_s: float = 0.5
    feedback_max_s: float = 15.0
    feedback_factor: float = 1.3
    feedback_least_s: float = 0.1
    quick_factor: float = 0.6
    rtt_first_s: float = 5.0
    rtt_weight: float = 0.05
    pace_gain: float = 2.0
    burst_part: float = 0.5
    burst_part_starting: float = 0.025
    rate_room: float = 1.5
    quantum_gain: float = 0.985
    memory_rtts: float = 20.0
    trust_rtts: float = 30.0
    log_rtts: float = 8.0
    log_least_s: float = 10.0
    trip_failures: int = 5
    grace_s: float = 0.3
    stop_after: int = 6
    latency_tolerance: float = 2.0
    latency_target_s: float | None = None
    breaker: BreakerConfig = field(default_factory=BreakerConfig)
    diagnosis: DiagnosisConfig = field(default_factory=DiagnosisConfig)


CLEARLY = 0.89
"""A refused level is disproved if it is below this part of an accepted limit."""


@dataclass(slots=True)
class AcceptedLater:
    """The last refused `level` and when it was refused (`at`). `count` refused levels in a row were accepted later, the
    last at `last_at`. A cap was last seen to stand at `stood_at`.

    It holds levels that were refused and later accepted: a sign that the provider does not bound the number of open
    calls, unless one call more than a certain number was refused again and again: then it is a cap that has moved.
    """

    level: int | None = None
    at: float = NEVER
    count: int = 0
    last_at: float = NEVER
    stood_at: float = NEVER

    def note_cap(self, now: float) -> None:
        """Note that one call more was refused again, and nothing less."""
        self.stood_at = now

    def note_refusal(self, level: int, now: float) -> None:
        self.level, self.at = level, now

    def below(self, now: float, rtt_s: float) -> int | None:
        """Return the level refused within the last two round trips; a diagnosis clearly below it means that it fell
        again."""
        return self.level if now - self.at < 2.0 * rtt_s else None

    def confirmed(self, limit: float, now: float, rtt_s: float, memory_rtts: float) -> bool:
        """Note that `limit` was accepted; returns whether that disproves a remembered level for the second time."""
        if self.level is None or now - self.at >= memory_rtts * rtt_s or self.level >= CLEARLY * limit:
            return False
        self.level = None
        if now - self.stood_at < memory_rtts * rtt_s:
            return False
        return self.count_acceptance(now, rtt_s, memory_rtts)

    def count_acceptance(self, now: float, rtt_s: float, memory_rtts: float) -> bool:
        """Count a disproved level; returns whether it is the second within the memory."""
        self.count = self.count + 1 if now - self.last_at < memory_rtts * rtt_s else 1
        self.last_at = now
        return self.count >= 2


FILLS = 3
"""How often a new limit must be filled to be confirmed."""
MOST_ON_WAY = 4.0
LARGE_STEP = 4.0
SETTLED_ROW = 3
"""A level that was refused this often in a row, and no other one, is considered stable."""
FORMER_CAPS = 4
"""So many levels are remembered above which one call more was refused twice: a neighbour who comes and goes brings them
back."""
SOON_ROW, SOON_RTTS, SOON_TOLD_RTTS = 10, 1.0, 2.0
"""How often one call more is tried, each so many round trips, after a cap has fallen far: a neighbour may leave. Where
budgets are told, it may be one of them that refused calls."""
MOVED_PART = 0.7
"""A cap below this part of the limit has fallen; else calls may have been refused by chance."""
AT_CAP = 1.1
"""A limit is at a cap if calls are refused at so many times as many, or one more."""
SLOW_START_PART = 0.9
"""Slow start ends when this part of the ceiling is confirmed: calls beyond the true capacity would all be refused
before the first refusal arrives."""


AHEAD = 2.2
"""How far slow start may be ahead of the highest level whose answers are known, as a factor."""


@dataclass(slots=True)
class Growth:
    """The growth of the limit.

    `limit` is the wanted limit, `before` the one before the last step, `good` a level known to be accepted. `refused`
    is the lowest level at which a step of one call was refused, `row` times in a row (0: none).

    Slow start goes on as long as answers of nearly the present level are calm; `answered` is the highest such level.
    The last cut `interrupted` it. The limit was first filled at `held_since` after the last cut or step beyond `good`,
    and one slot was given up at `lowered_at`. It was filled `fills` times of `needed` since it last moved, the last
    counted time at `filled_at`. `resumed` says that work has come back after a pause and has not filled it yet. `caps`
    are the last levels above which one call more was refused twice in a row.

    The limit on open calls grows by slow start, by climbing back, and by careful steps beyond what is known. A step is
    *pending* until the new limit was filled three times and a feedback delay passed without a refusal; only then comes
    the next one. Three paces (the window's congestion control, Jacobson 1988, with silence for the acknowledgement):

    * slow start: times `slow_start_factor`, up to `good` if a good level is remembered;
    * below `good`, the level that was fine a while ago: plus 5 %, at least 1, each feedback delay, or at once to a
      former cap that is near;
    * beyond: after a hold since the limit was filled after the last such step or cut, +1, +2, +4 ... as long as steps
      are confirmed, but no further than to the highest former cap at once. A refused step is undone exactly and the
      hold doubles, so that a stable cap costs one refusal a hold. Holds are short again where the cap has moved: it
      fell deep, or a level that was considered stable is accepted; and for a while below a far higher former cap.
    """

    limit: float
    slow_start: bool = True
    pending: bool = True
    before: float = 0.0
    grew_at: float = NEVER
    held_since: float | None = None
    lowered_at: float = NEVER
    full_since: float | None = None
    fills: int = 0
    needed: int = FILLS
    filled_at: float = NEVER
    increment: float = 1.0
    hold_rtts: float = 1.0
    good: float = 0.0
    cut_at: float = NEVER
    slow_start_until: float = NEVER
    resumed: bool = False
    refused: float = 0.0
    row: int = 0
    answered: float = 0.0
    interrupted: bool = False
    caps: list[float] = field(default_factory=list)

    @property
    def step(self) -> float:
        """The number of calls that the pending step has added."""
        return max(0.0, self.limit - self.before) if self.pending else 0.0

    @property
    def large_step(self) -> bool:
        """Whether the pending step is so large that it may be refused for its haste alone."""
        return self.step >= LARGE_STEP

    @property
    def cautious(self) -> bool:
        """Whether bursts are forbidden: while a step of more than one call is tried, and after a cut until the limit is
        filled again; but not if work has come back after a pause."""
        return not (self.slow_start or self.resumed) and (self.step >= 2.0 or self.full_since is None)

    @property
    def settled(self) -> bool:
        """Whether the limit has been stable for long."""
        return self.row >= SETTLED_ROW

    @property
    def is_at_cap(self) -> bool:
        """Whether a step of one call was refused not far above the limit."""
        return 0.0 < self.refused <= max(AT_CAP * self.limit, self.limit + 1.0)

    @property
    def may_rise_again(self) -> bool:
        """Whether the cap was far higher before, and one call more was not refused often since."""
        return self.row < SOON_ROW and self.limit < MOVED_PART * max(self.caps, default=0.0)

    def filled(self, at: float) -> None:
        """Note that a call was sent that used the last slot."""
        self.resumed = False
        if self.full_since is None:
            self.full_since = at
        if self.held_since is None:
            self.held_since = at
        if self.fills < min(self.needed, max(1, int(self.limit))):
            self.fills, self.filled_at = self.fills + 1, at

    def confirmed_at(self, feedback_s: float) -> float | None:
        """Return when the pending step counts as accepted, if nothing is refused until then; None before it is
        filled."""
        if self.fills < min(self.needed, max(1, int(self.limit))):
            return None
        if self.slow_start:
            return max(self.filled_at, self.grew_at + feedback_s)
        return self.filled_at + feedback_s

    @property
    def _was_refused(self) -> bool:
        return 0.0 < self.refused <= self.limit < self.refused + 1.0

    def confirm(self, hold_min_rtts: float, ceiling: float) -> None:
        """Note that the pending step was accepted; slow start ends near the ceiling."""
        self.pending = False
        has_moved = self.settled and self.limit >= self.refused
        if self.limit >= self.refused:
            self.refused, self.row = 0.0, 0
        if not self.slow_start and self.limit > self.good:
            hold_rtts = 0.0 if has_moved else self.hold_rtts / 2.0
            self.hold_rtts, self.good = max(hold_min_rtts, hold_rtts), self.limit
        if self.slow_start and self.limit >= SLOW_START_PART * ceiling:
            self.slow_start, self.slow_start_until = False, self.filled_at

    def next_step_at(self, feedback_s: float, rtt_s: float, *, is_told: bool = False) -> float | None:
        """Return when the next step is due; None if the limit was not filled since it last moved. `is_told` says that
        the provider tells of budgets."""
        if self.full_since is None:
            return None
        if self.slow_start:
            return self.full_since if self.limit < AHEAD * self.answered else None
        if self.limit < self.good or self.increment > 1.0:
            return self.full_since + feedback_s
        soon_rtts = SOON_TOLD_RTTS if is_told else SOON_RTTS
        hold_s = (min(soon_rtts, self.hold_rtts) if self.may_rise_again else self.hold_rtts) * rtt_s
        began_at = self.full_since if self.held_since is None else self.held_since
        held_until = min(max(began_at, self.lowered_at) + hold_s, began_at + 2.0 * hold_s)
        return max(self.full_since + feedback_s, held_until)

    def grow(self, now: float, ceiling: float, slow_start_factor: float, hold_min_rtts: float, on_way: float) -> None:
        """Take the next step; about `on_way` calls are under way to the provider at any instant.

        One call too many passes when another one ends while it is under way. So a level that was refused before has to
        be filled more often to count as accepted.
        """
        before = self.limit
        if self.slow_start:
            most = ceiling if self.good >= ceiling else max(self.limit, SLOW_START_PART * ceiling)
            new = min(most, self.limit * slow_start_factor)
            if self.good and new >= self.good:
                new, self.slow_start, self.hold_rtts = self.good, False, hold_min_rtts
        elif self.limit < self.good:
            climbed, near = min(self.good, self.limit + max(1.0, 0.05 * self.limit)), self.limit / MOVED_PART
            new = max([climbed, *(cap for cap in self.caps if cap <= min(near, self.good))])
        else:
            self.held_since, new = None, self.limit + self.increment
            self.increment = min(2.0 * self.increment, max(1.0, 0.3 * self.limit))
            highest = max(self.caps, default=0.0)
            if self.limit < highest <= new:
                new, self.increment = highest, 1.0
        self._move(min(ceiling, new))
        self.before, self.grew_at, self.pending = before, now, True
        if self._was_refused:
            self.needed = math.ceil(FILLS * math.exp(min(on_way, MOST_ON_WAY)))

    def undo(self, now: float, hold_min_rtts: float, hold_max_rtts: float) -> None:
        """Undo the pending step, and wait longer before the next one."""
        self.good = self.before
        if self.large_step:
            self.hold_rtts = 0.0
        elif self.step < 2.0:
            self.row = self.row + 1 if self._was_refused else 1
            self.refused = self.limit
            if self.row >= 2:
                self._remember_cap(self.before)
            self.double_hold(hold_min_rtts, hold_max_rtts)
        self.cut(now, self.before)

    def _remember_cap(self, cap: float) -> None:
        others = [other for other in self.caps if abs(other - cap) >= 1.0]
        self.caps = [*others, cap][-FORMER_CAPS:]

    def cut(self, now: float, limit: float) -> None:
        """Lower the limit. Refusals of calls sent before now belong to the old limit."""
        if self.slow_start:
            self.slow_start_until = now
        self._move(limit)
        self.interrupted, self.slow_start, self.increment, self.cut_at = self.slow_start, False, 1.0, now
        self.held_since = None

    def lower(self, now: float, limit: float) -> None:
        """Lower the limit without starting a new settle window. The next step beyond waits for another hold, once: if
        calls are refused by chance, it would wait for ever."""
        self._move(float(limit))
        self.increment, self.refused, self.lowered_at = 1.0, limit + 1.0, now

    def uncut(self, now: float, limit: float) -> None:
        """Undo a cut that was wrong; `limit` is known to be good. If it ended slow start, that goes on."""
        self._move(limit)
        self.increment, self.cut_at = 1.0, now
        if self.interrupted:
            self.slow_start, self.pending, self.answered = True, True, limit
        else:
            self.good = max(self.good, limit)

    def forget_step(self) -> None:
        """Forget the pending step, because the limit is not the bound: whether it was filled says nothing."""
        self.full_since, self.pending = None, False

    def lift(self, limit: float) -> None:
        """Raise the limit, because something else than the number of open calls is the bound."""
        if self.limit < limit:
            self._move(limit)
            self.slow_start, self.good = False, max(self.good, limit)

    def retake(self, now: float, hold_min_rtts: float) -> None:
        """Go on growing from here, in slow start if that was interrupted: what stopped the growth was noise."""
        if self.slow_start_until > NEVER and not self.good:
            self.restart(now, self.limit, 0.0, hold_min_rtts)
        else:
            self._move(self.limit)
            self.hold_rtts = hold_min_rtts

    def go_on(self, start: float, until: float) -> None:
        """Resume slow start from here, or from `start` if that is more, up to `until`: levels above were never
        tried."""
        self._move(max(self.limit, start))
        self.slow_start, self.pending, self.good, self.answered = True, True, until, self.limit

    def hold_after_cut(self, limit: float, hold_min_rtts: float, hold_max_rtts: float) -> None:
        """Wait longer before the next step, unless the cap has just fallen to `limit`: it may soon rise again."""
        if limit < MOVED_PART * self.limit:
            self.hold_rtts = hold_min_rtts
        else:
            self.double_hold(hold_min_rtts, hold_max_rtts)

    def double_hold(self, hold_min_rtts: float, hold_max_rtts: float) -> None:
        self.hold_rtts = min(hold_max_rtts, max(hold_min_rtts, 2.0 * self.hold_rtts))

    def restart(self, now: float, limit: float, good: float, hold_min_rtts: float) -> None:
        """Begin slow start at `limit`, back to `good` (after an outage)."""
        self._move(limit)
        self.before, self.good, self.hold_rtts, self.pending = 0.0, good, hold_min_rtts, True
        self.slow_start, self.increment, self.cut_at, self.grew_at = True, 1.0, now, now
        self.answered = limit

    def _move(self, limit: float) -> None:
        self.limit, self.full_since, self.pending, self.resumed = limit, None, False, False
        self.fills, self.needed = 0, FILLS


LAST_REFUSALS = 8
WAY_MOST_S = 0.1
QUICKER_WEIGHT, SLOWER_WEIGHT = 0.2, 0.02
"""Weights that keep `quick_s` near the quickest tenth of the answers."""


@dataclass(slots=True)
class Timescales:
    """The time scales. A call older than `feedback_s` that was not refused has been accepted. `rtt_s` is the average
    latency of answers, `quick_s` that of the quickest ones.

    There are two, measured for each pool: how fast refusals come back, and how long answers take.
    """

    feedback_s: float
    rtt_s: float
    quick_s: float
    answered: bool = False
    refusal_latencies: deque[float] = field(default_factory=lambda: deque(maxlen=LAST_REFUSALS))

    @property
    def way_s(self) -> float:
        """How long a call is under way to the provider, at most: half of the time in which a refusal comes back."""
        return min(WAY_MOST_S, 0.5 * min(self.refusal_latencies, default=0.0))

    def record_refusal(self, config: AdaptiveConfig, event: Done) -> None:
        self.refusal_latencies.append(event.latency_s)
        while len(self.refusal_latencies) > LAST_REFUSALS:
            self.refusal_latencies.popleft()
        self._bound(config)

    def record_answer(self, config: AdaptiveConfig, event: Done) -> None:
        """Add an answer's latency to the average; the first one becomes the average."""
        weight = config.rtt_weight if self.answered else 1.0
        self.rtt_s = max(1e-3, self.rtt_s + weight * (event.latency_s - self.rtt_s))
        if not self.answered:
            self.quick_s = event.latency_s
        quicker = event.latency_s < self.quick_s
        self.quick_s += (QUICKER_WEIGHT if quicker else SLOWER_WEIGHT) * (event.latency_s - self.quick_s)
        self.answered = True
        self._bound(config)

    def _bound(self, config: AdaptiveConfig) -> None:
        """Update `feedback_s`. A refusal costs no inference, so it comes back sooner than the quickest answers."""
        sooner = max(config.feedback_least_s, config.quick_factor * self.quick_s)
        if self.refusal_latencies:
            slowest = config.feedback_factor * max(self.refusal_latencies)
            self.feedback_s = min(config.feedback_max_s, max(min(config.feedback_min_s, sooner), slowest))
        else:
            self.feedback_s = min(config.feedback_first_s, sooner)


RETRY_RTTS = 3.0
"""A slot that is accepted again within this time was not refused for its level."""


@dataclass(slots=True)
class TopRefusals:
    """The last refusal at the top: at `level` open calls, at the time `at`. `level` is None once the question is
    settled.

    Single refusals at the very top mean that the cap has moved by one, or are noise. The first sign of a cap that
    drifts down is one refusal of a call that used the last slot. Waiting for more evidence would cost more refusals, so
    one slot is given up at once, and tried again soon. If it is accepted then, such refusals count as noise for a
    while, and cost nothing.
    """

    level: int | None = None
    at: float = NEVER
    noisy_until: float = NEVER

    def note_refusal(self, level: int, now: float) -> None:
        """Note that `level` was refused."""
        self.level, self.at = level, now

    def step_confirmed(self, limit: float, now: float, rtt_s: float, until: float) -> None:
        """Note that a step to `limit` was accepted. If that is soon after the refusal, such refusals are noise `until`
        then."""
        if self.level is None or limit <= self.level:
            return
        if now - self.at < RETRY_RTTS * rtt_s:
            self.noisy_until = until
        self.level = None


@dataclass(slots=True)
class SingleCalls:
    """The phase after a collapse, or after the cut to a cap (`after_cut`), in which one unresolved call is sent at a
    time. After a cut one that is accepted ends it, and the limit stays; one that is refused makes it a collapse's.

    `level` open calls were refused, `highest` were open when a single call was refused last. `slow_start` says that the
    pool was starting, so that no level is known to be good.
    """

    level: int
    slow_start: bool
    highest: int = 0
    after_cut: bool = False


@dataclass(slots=True)
class AdaptiveState:
    """The whole state of the default engine.

    `judging_since` is when grants were held to diagnose the episode of refusals that began at `episode`. `ceiling` is
    that of the last decision.
    """

    growth: Growth
    timescales: Timescales
    log: CallLog = field(default_factory=CallLog)
    judging_since: float | None = None
    episode: float = 0.0
    single_calls: SingleCalls | None = None
    top_refusals: TopRefusals = field(default_factory=TopRefusals)
    accepted_later: AcceptedLater = field(default_factory=AcceptedLater)
    rate: LearnedRate | None = None
    noise: Noise = field(default_factory=Noise)
    not_a_rate_until: float = NEVER
    overload: OverloadWaves = field(default_factory=OverloadWaves)
    told: ReportedBudgets = field(default_factory=ReportedBudgets)
    latency: LatencyWatch = field(default_factory=LatencyWatch)
    breaker: Breaker = field(default_factory=Breaker)
    failures: Failures = field(default_factory=Failures)
    limit_at_trip: float = 0.0
    ceiling: int = 0
    reason: str = "the limit that a pool begins with"
    kind: Literal["adaptive"] = "adaptive"

    @classmethod
    def starting_at(cls, config: AdaptiveConfig, limit: float) -> AdaptiveState:
        return cls(
            Growth(float(limit), answered=float(limit)),
            Timescales(config.feedback_first_s, config.rtt_first_s, config.feedback_first_s),
        )

    def ceiling_is(self, ceiling: int, first: float) -> None:
        """Take in the ceiling, under which a new pool begins with the limit `first`.

        If only the former ceiling kept the limit from rising, and no level above it was ever refused, slow start goes
        on.
        """
        if 0 < self.ceiling < ceiling and self.growth.limit >= self.ceiling and self.accepted_later.level is None:
            self.growth.go_on(first, float(ceiling))
        self.ceiling = ceiling
