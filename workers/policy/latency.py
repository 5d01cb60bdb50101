"""Latency as a sign of queueing: a knee above which more calls only wait for each other, and an operator's target."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from dicast.workers.policy.calls import NEVER, Done

MOST_COHORTS = 50
COHORT = 24
"""The fewest calls of a cohort; one of a large limit has half as many as that, and at a knee all of them."""
LEAST_ANSWERS, MOST_ANSWERS = 12, 64
"""The answers by which the throughput before a cut is measured."""
PAUSE_RTTS = 2.0
"""Without an answer for so many round trips, there was no work."""
LEAST_IN_COHORT = 12
"""The fewest accepted calls of a cohort that counts: the median of a few is chance."""
KNOWN_PART = 3
"""A median is known once at least one in so many calls of its cohort has taken as long."""
LEAST_LATENCY_S = 1e-3
"""The resolution of the clock that calls are timed by."""
LOOKS_AT_COHORT = 24
"""The median of a large cohort is looked for about so often while its answers come."""
WEIGHT = 0.4
"""The weight of one median in their average."""
BASE_GROWTH, BASE_GROWTH_AT_CAP = 1.001, 1.05
"""Growth of the base per cohort, so that one measured at a lucky time is forgotten: slowly, and soon where calls are
refused above the limit, so that a knee is not what bounds it."""
START_CALM, CALM, QUEUEING = 1.25, 1.55, 2.1
"""Latencies relative to the base: up to the first slow start may go on; at a known knee, up to the second the limit may
rise, and above the third it is cut."""
LUCKY = 2.7
"""So many times what the quickest tenth of the first cohort took is the most that its median can be without a queue."""
KNEE_GROWTH, CALM_KNEE_GROWTH = 1.05, 1.1
"""Growth of the knee per cohort whose calls hardly queued, and of one whose calls did not; one call more is added."""
LOW_KNEE_GROWTH = 0.04
"""That call as a part of the knee at most: to a few calls, three cohorts would add more than a probe takes back."""
EARLY_COHORTS, MOST_EARLY = 2, 64
"""The cohorts, and the most calls of them, by which a queue of the first calls shows itself ..."""
RISES = 3.0
"""... if latency rises with the number open by so many standard deviations."""
BACK_PART = 0.75
"""... once more than this part of the calls that found as few open are back: the quick ones come first."""
AT_KNEE = 0.9
"""The limit has reached the knee from this part of it on."""
USED_PART = 0.7
"""A limit is in use where more calls than this part of it are open, or all but one."""
PROBED_PART = 0.65
"""The part of the limit that a probe leaves, if no more is known to be needed."""
DEEPEST_CUT = 0.2
"""The least part of the limit that a cut leaves."""
CUT_STANDS, PROBE_STANDS = 0.5, 0.3
"""A cut to a part of the limit stands if at least this power of that part is left of the throughput. A probe is undone
more easily, for a wrong one costs more than one fewer."""
SETTLED_RTTS = 1.0
"""So many round trips after a cut, as few calls are open as it wants."""
WAITED_ONLY = 0.9
"""The part of the throughput that is left after a cut if calls had only waited."""
YOUNG_MEDIANS, CLEARLY_SLOWER = 3, 3.0
"""Before there are so many medians, the base may be a lucky one, and only latencies so many times higher count."""
PROBE_SOON, PROBE_LATE = 3, 64
"""At a knee the limit is lowered to a part after so many cohorts, to measure the base anew: soon while that costs no
throughput, then ever later."""
PROBE_KNOWN = 12
"""So many after the cut of a queue that the first calls have shown: its base is that of calls that did not wait."""
NEEDED_FOR = 64
"""So many cohorts are not probed below the level that a former probe has shown to be needed."""
SHALLOW = 0.8
"""A probe that would leave more than this part of the limit is not made: chance hides what it costs."""


@dataclass(slots=True)
class Cohort:
    """Calls sent one after the other from `first` to `end`, under limits of at most `level` and on average of `limit`.

    `latencies` are those of the answers, in ascending order, and `awaited` the instants of sending of the calls that
    are not back yet. `opened` is the sum of how many calls were open with each answered one, itself included. `median`
    is their median latency, once it is known.
    """

    first: float
    end: float | None = None
    level: float = 0.0
    limit: float = 0.0
    latencies: list[float] = field(default_factory=list)
    awaited: list[float] = field(default_factory=list)
    opened: int = 0
    median: float = 0.0

    @property
    def size(self) -> int:
        return len(self.latencies) + len(self.awaited)

    @property
    def open(self) -> float:
        """How many calls were open with each answered one on average, itself included."""
        return self.opened / len(self.latencies)

    @property
    def is_at_limit(self) -> bool:
        """Whether nearly as many calls were open as were allowed."""
        return self.open > min(USED_PART * self.limit + 1.0, int(self.limit) - 0.5)

    def add(self, at: float, limit: float) -> None:
        """Note that a call was sent under that limit."""
        insort(self.awaited, at)
        self.level = max(self.level, limit)
        self.limit += (limit - self.limit) / self.size

    def close(self, event: Done) -> None:
        """Take in the outcome of one of these calls. One that was not answered does not count."""
        place = bisect_left(self.awaited, event.sent_at)
        if place < len(self.awaited) and self.awaited[place] == event.sent_at:
            del self.awaited[place]
        if event.ok:
            insort(self.latencies, max(LEAST_LATENCY_S, event.latency_s))
            self.opened += event.open_before + 1

    def median_at(self, now: float) -> float | None:
        """Return the median latency as far as it is known `now`; None while it is not.

        A call that is awaited counts by what it has taken so far, as in the estimate of Kaplan and Meier (1958): of
        calls that were sent one after the other, the first ones to come back are not the quick ones.
        """
        surviving, longer = 1.0, len(self.awaited)
        for number, latency in enumerate(self.latencies):
            while longer and now - self.awaited[longer - 1] < latency:
                longer -= 1
            at_risk = len(self.latencies) - number + longer
            surviving *= 1.0 - 1.0 / at_risk
            if surviving < 0.5 - 1e-9:
                return latency if KNOWN_PART * at_risk >= self.size else None
        return None


CURVE_STEP = 1.25
"""Levels that lie nearer to each other than this share a point of the curve."""
MOST_POINTS = 16


@dataclass(slots=True)
class CurvePoint:
    """What was seen with about `open` calls open, lately `at`: answers a second, and the median latency."""

    open: float
    per_s: float
    latency_s: float
    at: float


@dataclass(slots=True)
class CutTrial:
    """A cut under test: when, the limits before and after, and the knee before.

    The throughput before is known in two ways, answers a second (`per_s_before`) and, by Little's law, open calls by
    latency (`flow_before`). `answers` are counted from `since`, when as few calls are open as the cut wants.
    """

    at: float
    before: float
    after: float
    per_s_before: float
    flow_before: float
    knee_before: float | None
    is_probe: bool
    since: float | None = None
    answers: int = 0

    @property
    def is_deep(self) -> bool:
        """Whether it is a probe that was not kept from going as far down as it may."""
        return self.is_probe and self.after <= max(1.0, (PROBED_PART + 1e-6) * self.before)

    def throughput(self, cohort: Cohort, now: float) -> float:
        """Return the throughput relative to that before, by a cohort that was sent under the new limit.

        It is the geometric mean of the two: each may mislead. Answers that come while a server gets slower are few,
        whatever the limit is, and a few latencies are chance.
        """
        assert self.since is not None
        counted = self.answers / max(1e-6, now - self.since) / self.per_s_before
        return math.sqrt(counted * cohort.open / cohort.median / self.flow_before)


AIM, CALM_PART, STEEPEST_CUT, STEEPEST_RISE = 0.9, 0.8, 0.5, 1.5
"""Of the latency target: what a change of the limit aims at, and below which more calls are tried soon. Of the limit:
the most by which it changes at once, for the latency of a moment may be chance."""
FIRST_WAIT, LONGEST_WAIT, CALM_COUNTS = 4, 256, 4
"""So many looks are taken before more calls are tried; one at calm calls counts for several."""
LOOK, LOOK_AT_ONE, LOOKED_AT, DOUBT = 24, 12, 96, 18
"""The fewest answers between two looks at the latencies (while only one call may be open, they are long in coming), and
the most that a look takes in. For each `DOUBT` fewer than that, one more has to be above or below a bound."""
ANEW_RTTS = 2.5
"""So many round trips after a change of the limit, answers are those of the new one."""


@dataclass(slots=True)
class LatencyTarget:
    """The operator's target for the median latency of calls, in seconds; None: there is none.

    `most` bounds the limit; None while the target was never missed. `latencies` are the last ones since it moved at
    `moved_at`, `fresh` of which came after the last look; those calls left with at most `most_open` open, themselves
    included. `left` is how many looks the next rise has to wait, and `wait` how many one has to at present.

    Where the median is above the target, the limit is cut in proportion, to what would take nine tenths of the target.
    It rises in the same way where the median is below four fifths of the target, and by a twentieth and a call after
    four looks below the target itself: whether more calls take longer is not known before they are tried. A rise after
    which the target is missed makes the next one wait twice as long, so that a limit that is as high as it may be is
    hardly ever left. Answers are taken as they come, from whichever call: of calls that were sent together, those that
    are back first are the quick ones.
    """

    target_s: float | None = None
    most: float | None = None
    moved_at: float = NEVER
    latencies: deque[float] = field(default_factory=deque)
    fresh: int = 0
    most_open: int = 0
    wait: int = FIRST_WAIT
    left: int = FIRST_WAIT
    rose: bool = False

    def aim(self, target_s: float | None) -> None:
        """Take in the target that the operator wants at present; without one, nothing is left of an earlier one."""
        if target_s is None and self.target_s is not None:
            self.most = None
        if target_s != self.target_s:
            self._forget()
            self.target_s, self.rose, self.wait, self.left = target_s, False, FIRST_WAIT, FIRST_WAIT

    def meet(self, event: Done, limit: float, rtt_s: float) -> float | None:
        """Take in an outcome; returns the limit that keeps the target if that is missed, else None.

        A call that failed later than the target has missed it.
        """
        if self.target_s is None or event.was_refused or event.at < self.moved_at + ANEW_RTTS * rtt_s:
            return None
        if not event.ok and event.latency_s <= self.target_s:
            return None
        self.latencies.append(event.latency_s)
        while len(self.latencies) > LOOKED_AT:
            self.latencies.popleft()
        self.fresh, self.most_open = self.fresh + 1, max(self.most_open, event.open_before + 1)
        if self.fresh < max(LOOK if limit >= 2.0 else LOOK_AT_ONE, limit / 2.0):
            return None
        opened, self.fresh, self.most_open = self.most_open, 0, 0
        return self._compare(sorted(self.latencies), limit, opened, event.at)

    def _compare(self, latencies: list[float], limit: float, opened: int, now: float) -> float | None:
        assert self.target_s is not None
        middle, doubt = len(latencies) // 2, (LOOKED_AT - len(latencies)) // DOUBT
        median = latencies[middle]
        if latencies[middle - doubt] > self.target_s:
            return self._cut(min(limit, float(opened)), median, now)
        if self.most is None or limit < 0.9 * self.most:
            return None
        calm = latencies[middle + doubt] < CALM_PART * self.target_s
        self.left -= CALM_COUNTS if calm else int(median < self.target_s)
        if self.left <= 0:
            if self.rose and calm:
                self.wait = max(FIRST_WAIT, self.wait // 2)
            in_proportion = min(STEEPEST_RISE, AIM * self.target_s / median)
            self._move(max(self.most * KNEE_GROWTH + 1.0, self.most * in_proportion), now, rose=True)
        return None

    def _cut(self, calls: float, median_s: float, now: float) -> float | None:
        assert self.target_s is not None
        self.wait = min(LONGEST_WAIT, 2 * self.wait) if self.rose else FIRST_WAIT
        if calls <= 1.0:
            self._forget()
            self.rose, self.left = False, self.wait
            return None
        self._move(max(1.0, calls * max(STEEPEST_CUT, AIM * self.target_s / median_s)), now, rose=False)
        return self.most

    def _move(self, most: float, now: float, *, rose: bool) -> None:
        self._forget()
        self.most, self.moved_at, self.rose, self.left = most, now, rose, self.wait

    def _forget(self) -> None:
        self.latencies.clear()
        self.fresh = self.most_open = 0


def unqueued_latency(calls: Sequence[tuple[int, float]]) -> float | None:
    """Return the mean latency of the third of `calls` (open when sent, latency) that was sent with the fewest open;
    None if the others did not queue.

    They queued if latency rises with the number open, by the rank correlation of Kendall (1938), and the third with the
    most open took more than `QUEUEING` times as long. Since nothing was open when the first call was sent, the others
    with as few open are known: if too many of them are not back yet, those that are have been quick by chance.
    """
    pairs, third, score = sorted(calls), len(calls) // 3, 0
    if len(calls) < LEAST_IN_COHORT or third <= BACK_PART * (pairs[third - 1][0] + 1):
        return None
    for number, (opened, latency) in enumerate(pairs):
        later = [other for level, other in pairs[number + 1 :] if level > opened]
        score += sum((other > latency) - (other < latency) for other in later)
    deviation = math.sqrt(len(pairs) * (len(pairs) - 1) * (2 * len(pairs) + 5) / 18.0)
    few, many = (fmean(latency for _, latency in part) for part in (pairs[:third], pairs[-third:]))
    return few if score > RISES * deviation and many > QUEUEING * few else None


@dataclass(slots=True)
class LatencyWatch:
    """Watches the latency. `hot` says that it rises, so that the limit must not grow. `base` is the least average of
    medians. `calm` is the highest limit whose calls did not queue. `knee` bounds the limit once calls have queued;
    `probe_in` more cohorts are awaited before the base is measured anew. `enough` is what the last cut left that cost
    no throughput; probes leave `needed` for `needed_for` more cohorts, since fewer calls did cost some. `target` bounds
    it where the operator wants a latency. `early` are the first calls, (open when sent, latency); `queued` says that
    they have shown a queue, until the cut for it was judged. `answer_times` are when the last answers came. `curve` has
    what was seen at each level, for people; nothing follows from it.

    Latency is a sign of queueing, read without survivor bias and with a test for being wrong. Calls are grouped into
    cohorts by the order of *sending*, whose median is estimated from those that are back and how long the others have
    been awaited. If it rises far above the least seen lately, the limit is cut towards it. Little's law then judges the
    cut: where calls were queueing, the throughput stays as it was; if it falls nearly as far as the limit, the model
    itself became slower, the cut is undone and the new latency is the base.

    From the first cut on, the limit stays at the knee, the level from which more calls at once only wait for each
    other. It rises while calls do not queue, and is cut where they do. A base that was measured while calls already
    queued is too high; so the limit is lowered now and then, and the same law judges whether that cost anything. If it
    did, the limit is not lowered as far for a long time. So it is while slow start waits for calm answers: either the
    first ones were quick by luck, or the later ones queue.
    """

    cohorts: deque[Cohort] = field(default_factory=deque)
    short: float | None = None
    base: float | None = None
    calm: float = 0.0
    knee: float | None = None
    early: list[tuple[int, float]] = field(default_factory=list)
    queued: bool = False
    medians: int = 0
    probe_in: int = PROBE_SOON
    probe_after: int = PROBE_SOON
    enough: float = 0.0
    needed: float = 0.0
    needed_for: int = 0
    answer_times: deque[float] = field(default_factory=deque)
    trial: CutTrial | None = None
    hot: bool = False
    target: LatencyTarget = field(default_factory=LatencyTarget)
    curve: dict[int, CurvePoint] = field(default_factory=dict)

    def most(self, ceiling: float) -> float:
        """Return the most that the limit may become: the least of the ceiling, the knee and what keeps the target."""
        return min(ceiling, self.knee or ceiling, self.target.most or ceiling)

    def forget(self) -> None:
        """Drop all cohorts: after an outage, earlier latencies are not comparable. A cut that was under test is
        undone."""
        self._end_trial()
        self.cohorts.clear()
        self.answer_times.clear()
        self.short = None
        self.calm, self.hot = 0.0, False
        self.enough = self.needed = 0.0
        self.early.clear()

    def _end_trial(self) -> None:
        """Forget the cut under test, and what it said of the knee."""
        if self.trial is not None:
            self.knee = None if self.trial.knee_before is None else self.trial.before
            self.trial = None

    def sent(self, at: float, limit: float) -> None:
        """Note that a call was sent under that limit."""
        if not self.cohorts or self.cohorts[-1].end is not None:
            if len(self.cohorts) > MOST_COHORTS:
                self.cohorts.popleft()
            self.cohorts.append(Cohort(at))
        cohort = self.cohorts[-1]
        cohort.add(at, limit)
        if cohort.size >= max(COHORT, limit / 2.0 if self.knee is None else limit):
            cohort.end = at

    def observe(
        self,
        event: Done,
        *,
        limit: float,
        rtt_s: float,
        tolerance: float,
        is_waiting: bool = False,
        at_cap: bool = False,
    ) -> float | None:
        """Take in one outcome; returns a new limit if the latency calls for one, else None.

        A value above `limit` undoes the cut under test; one below is a cut. `is_waiting` says that slow start waits for
        calm answers, `at_cap` that calls are refused above the limit: then only much slower answers mean a knee.
        """
        if event.ok:
            self._count(event, rtt_s)
        cohort = self._complete(event)
        lower = self.target.meet(event, limit, rtt_s)
        if lower is not None:
            self._end_trial()
            return lower
        if cohort is None:
            return None
        self._draw(cohort, event.at)
        if self.trial is not None:
            if self.trial.since is None or cohort.first < self.trial.since:
                return None
            former = self._judge(self.trial, cohort, event.at)
            if former is not None:
                return former
        queueing = self._compare(cohort, tolerance, at_cap=at_cap)
        if self.target.most is not None and self.target.most <= (self.knee or self.target.most):
            self.hot = False  # the target says how long calls may take, and no longer the base
            return None
        return self._changed(cohort, limit, queueing, event.at, is_waiting=is_waiting)

    def _judge(self, trial: CutTrial, cohort: Cohort, now: float) -> float | None:
        """End the trial of a cut by a cohort that was sent well after it; returns the former limit if it is undone."""
        throughput = trial.throughput(cohort, now)
        self.trial, self.short = None, cohort.median
        self.cohorts = deque(other for other in self.cohorts if other.first >= trial.at)
        stands = throughput >= (trial.after / trial.before) ** (PROBE_STANDS if trial.is_probe else CUT_STANDS)
        self.probe_after = PROBE_SOON if throughput > WAITED_ONLY else min(PROBE_LATE, 2 * self.probe_after)
        if self.queued and stands:
            self.probe_after = PROBE_KNOWN
        self.probe_in, self.queued = self.probe_after, False
        self._learn_needed(trial, stands=stands)
        if stands:
            return None
        self.base, self.knee = cohort.median, None if trial.knee_before is None else trial.before
        return trial.before

    def _learn_needed(self, trial: CutTrial, *, stands: bool) -> None:
        """Learn how many calls keep the throughput.

        If a level that was enough before seems to be too low, one of the two was chance, and nothing is known.
        """
        if stands:
            self.enough = trial.after
            self.needed = 0.0 if trial.after < self.needed else self.needed
        elif 0.0 < self.enough <= trial.after:
            self.enough = self.needed = 0.0
        elif trial.is_deep:
            self.needed = min(CALM_KNEE_GROWTH * self.enough or trial.before, (trial.before + trial.after) / 2.0)
            self.needed_for = NEEDED_FOR

    def _compare(self, cohort: Cohort, tolerance: float, *, at_cap: bool) -> float:
        """Compare a cohort with the base; returns from how many times the base on calls are queueing.

        At a cap a knee that calls do not queue at is none, and only much slower answers mean one.
        """
        self.medians, median = min(self.medians + 1, YOUNG_MEDIANS), cohort.median
        self.short = median if self.short is None else self.short + WEIGHT * (median - self.short)
        quick = LUCKY * cohort.latencies[len(cohort.latencies) // 10]
        growth = BASE_GROWTH_AT_CAP if at_cap and self.knee is None else BASE_GROWTH
        self.base = min(self.short, quick if self.base is None else self.base * growth)
        if self.early:
            self._look_for_early_queue()
        if median <= START_CALM * self.base:
            self.calm = max(self.calm, cohort.level)
        latest = max(self.short, median)
        if at_cap and latest <= CALM * self.base:
            self.knee = None
        if self.knee is not None:
            self.hot = latest > CALM * self.base
            return QUEUEING
        if at_cap:
            tolerance = max(tolerance, CLEARLY_SLOWER)
        self.hot = self.short > 0.9 * tolerance * self.base
        is_young = self.medians < YOUNG_MEDIANS and not self.queued
        return max(tolerance, CLEARLY_SLOWER) if is_young else tolerance

    def _look_for_early_queue(self) -> None:
        """Take the latency of the first calls that did not wait for the base, if others waited for each other.

        A server of few slots has a queue from the first calls on, and a median of theirs is a base that hides it.
        """
        assert self.base is not None
        unqueued = unqueued_latency(self.early)
        if unqueued is not None and unqueued < self.base:
            self.base, self.queued = unqueued, True
        if self.queued or self.medians >= EARLY_COHORTS:
            self.early.clear()

    def _draw(self, cohort: Cohort, at: float) -> None:
        """Add a cohort to the curve. Of more levels than it has points for, those seen last are kept."""
        is_full, earliest = len(self.answer_times) >= MOST_ANSWERS, self.answer_times[0]
        if at <= cohort.first or (earliest > cohort.first and not is_full):
            return  # it began before the answers did, or a pause lies within
        since = max(cohort.first, earliest)
        opened = cohort.open
        per_s = sum(instant >= since for instant in self.answer_times) / max(1e-6, at - since)
        level = round(math.log(opened, CURVE_STEP))
        point = self.curve.setdefault(level, CurvePoint(opened, per_s, cohort.median, at))
        point.open += WEIGHT * (opened - point.open)
        point.per_s += WEIGHT * (per_s - point.per_s)
        point.latency_s += WEIGHT * (cohort.median - point.latency_s)
        point.at = at
        if len(self.curve) > MOST_POINTS:
            del self.curve[min(self.curve, key=lambda key: self.curve[key].at)]

    def _changed(self, cohort: Cohort, limit: float, queueing: float, now: float, *, is_waiting: bool) -> float | None:
        """Return the limit that follows from the latencies, of which `queueing` times the base is too much; None if it
        may stay."""
        is_early = self.queued and self.trial is None
        if not (cohort.is_at_limit or is_early) or len(self.answer_times) < LEAST_ANSWERS:
            return None
        assert self.short is not None and self.base is not None
        slower = self.short / self.base
        if limit > 1.0 and slower > queueing:
            part = max(DEEPEST_CUT, 1.2 / slower)
            # Slow start may have gone on since the calls that queued were sent.
            return self._cut(limit, part * min(1.0, cohort.limit / limit) if is_early else part, cohort, now)
        if self.knee is None and not (is_waiting and slower > START_CALM):
            return None
        at_knee = self.knee is None or limit >= AT_KNEE * self.knee
        self.probe_in, self.needed_for = self.probe_in - 1, self.needed_for - 1
        # Of fewer calls, a probe says too little. Slow start that waits in vain has to find out whether calls queue.
        is_bounded = self.knee is not None and self.needed_for > 0 and limit > COHORT
        part = max(PROBED_PART, self.needed / limit) if is_bounded else PROBED_PART
        if limit >= 2.0 and at_knee and self.probe_in <= 0 and part < SHALLOW:
            return self._cut(limit, part, cohort, now, is_probe=True)
        if self.knee is not None and at_knee and not self.hot:
            growth = CALM_KNEE_GROWTH if slower <= START_CALM else KNEE_GROWTH
            self.knee = self.knee * growth + min(1.0, LOW_KNEE_GROWTH * self.knee)
        return None

    def _cut(self, limit: float, part: float, cohort: Cohort, at: float, *, is_probe: bool = False) -> float:
        assert self.short is not None
        after = max(1.0, limit * part)
        since = max(cohort.first, self.answer_times[0])
        per_s = sum(instant > since for instant in self.answer_times) / max(1e-6, at - since)
        flow = cohort.open / max(self.short, cohort.median)
        self.trial = CutTrial(at, limit, after, per_s, flow, self.knee, is_probe)
        self.knee = after
        return after

    def _count(self, event: Done, rtt_s: float) -> None:
        """Count an answer. A pause says nothing about the throughput: it is then measured from its end."""
        if self.answer_times and event.at > self.answer_times[-1] + PAUSE_RTTS * rtt_s:
            self.answer_times.clear()
            if self.trial is not None:
                self.trial.since = None
        self.answer_times.append(event.at)
        while len(self.answer_times) > MOST_ANSWERS:
            self.answer_times.popleft()
        trial = self.trial
        if trial is not None:
            if trial.since is not None:
                trial.answers += 1
            elif event.at >= trial.at + SETTLED_RTTS * rtt_s:
                trial.since, trial.answers = event.at, 0

    def _complete(self, event: Done) -> Cohort | None:
        """Count the outcome in its cohort; returns the cohort once its median is known."""
        for cohort in self.cohorts:
            if cohort.end is None or event.sent_at <= cohort.end:
                break
        else:
            return None
        if event.sent_at < cohort.first:
            return None
        cohort.close(event)
        if event.ok and self.medians < EARLY_COHORTS and not self.queued and len(self.early) < MOST_EARLY:
            self.early.append((event.open_before, event.latency_s))
        if cohort.end is None:
            return None
        if cohort.size < LEAST_IN_COHORT:
            self.cohorts.remove(cohort)
            return None
        if not event.ok or len(cohort.latencies) % max(1, cohort.size // LOOKS_AT_COHORT):
            return None
        median = cohort.median_at(event.at)
        if median is None:
            return None
        cohort.median = median
        self.cohorts.remove(cohort)
        return cohort
