"""Latency as a sign of queueing."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Iterator

import pytest

from dicast.workers.policy.latency import LOOK, MOST_POINTS, Cohort, LatencyWatch, unqueued_latency
from tests.workers.policy.build import done

LIMIT = 40.0
SIZE = 24
"""The calls of a cohort under that limit, as long as no knee is known."""


@pytest.fixture
def watch() -> LatencyWatch:
    return LatencyWatch()


def feed(watch: LatencyWatch, clock: Iterator[float], latency: float, cohorts: int, refused: int = 0) -> list[float]:
    """Whole cohorts of calls with one latency, `refused` of them refused; what it asks for."""
    asked = []
    for _ in range(cohorts):
        instants = [next(clock) for _ in range(SIZE)]
        for at in instants:
            watch.sent(at, LIMIT)
        for number, at in enumerate(instants):
            status = 429 if number < refused else 200
            event = done("x", at + latency, at, status, open_before=39)
            limit = watch.observe(event, limit=LIMIT, rtt_s=latency, tolerance=2.0)
            if limit is not None:
                asked.append(limit)
    return asked


class Server:
    """Answers whatever is sent, `open` calls at a time, as fast as a server that serves `knee` calls at full speed."""

    def __init__(self, watch: LatencyWatch, knee: float, limit: float) -> None:
        self.watch, self.knee, self.limit, self.now = watch, knee, limit, 0.0
        self.limits = [limit]

    def run(self, seconds: float, full_speed_s: float = 1.0, *, is_waiting: bool = False) -> None:
        end = self.now + seconds
        while self.now < end:
            latency = full_speed_s * max(1.0, self.limit / self.knee)
            instants = [self.now + latency * number / self.limit for number in range(int(self.limit))]
            for at in instants:
                self.watch.sent(at, self.limit)
            for at in instants:
                event = done("x", at + latency, at, 200, open_before=int(self.limit) - 1)
                limit = self.watch.observe(event, limit=self.limit, rtt_s=latency, tolerance=2.0, is_waiting=is_waiting)
                if limit is not None:
                    self.limit = limit
                    self.limits.append(limit)
            self.now += latency
            if self.watch.knee is not None and not self.watch.hot:
                self.limit = max(self.limit, self.watch.knee)
            if self.watch.target.most is not None:
                self.limit = self.watch.most(100.0)


def test_a_server_that_only_gets_slower_is_kept_near_its_knee() -> None:
    server = Server(watch := LatencyWatch(), knee=32.0, limit=20.0)
    server.run(10.0)
    assert (server.limit, watch.knee) == (20.0, None)
    server.limit = 150.0  # as slow start may have it
    server.run(300.0)
    settled = []
    for _ in range(50):
        server.run(10.0)
        settled.append(server.limit)
    assert max(settled) <= 2.0 * 32.0
    assert sorted(settled)[len(settled) // 2] >= 32.0


def test_a_base_that_was_measured_in_a_queue_is_measured_anew() -> None:
    server = Server(watch := LatencyWatch(), knee=4.0, limit=45.0)
    server.run(100.0)
    assert watch.base is not None and watch.base > 5.0
    server.limit = 100.0
    server.run(3000.0)
    assert watch.base < 2.0 and server.limit <= 10.0


@pytest.mark.parametrize("knee", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("limit", [1.0, 2.0, 2.9, 3.5, 4.9, 5.75, 8.0])
def test_a_low_knee_is_found_from_whatever_limit(knee: int, limit: float) -> None:
    """A part of a small limit may be more than all calls but one."""
    server = Server(watch := LatencyWatch(), knee=knee, limit=limit)
    server.run(100.0)
    watch.base, watch.knee = 1.0, limit
    server.run(4000.0)
    settled = []
    for _ in range(200):
        server.run(20.0)
        settled.append(int(server.limit))
    assert knee <= sorted(settled)[len(settled) // 2] <= 2 * knee + 2


@pytest.mark.parametrize("burst_s", [0.5, 2.0, 4.0])
def test_work_that_comes_in_bursts_leaves_the_knee(burst_s: float) -> None:
    """A throughput that is measured over a pause is too low: a probe then seems to have cost nothing, or too much."""
    server = Server(LatencyWatch(), knee=32.0, limit=20.0)
    server.run(10.0)
    server.limit = 150.0
    server.run(300.0)
    reached = []
    for _ in range(300):
        server.run(burst_s)
        server.now += 60.0
        reached.append(server.limit)
    assert min(reached) >= 20.0
    assert sorted(reached)[len(reached) // 2] <= 2.1 * 32.0


def test_an_outage_during_a_probe_leaves_the_knee_where_it_was() -> None:
    server = Server(watch := LatencyWatch(), knee=32.0, limit=20.0)
    server.run(10.0)
    server.limit = 150.0
    server.run(300.0)
    while watch.trial is None:
        server.run(2.0)
    before = watch.trial.before
    watch.forget()
    assert (watch.knee, watch.trial) == (before, None)


def test_the_curve_has_throughput_and_latency_of_each_level_and_is_bounded() -> None:
    server = Server(watch := LatencyWatch(), knee=32.0, limit=8.0)
    for limit in (8.0, 16.0, 32.0, 64.0):
        server.limit = limit
        server.run(6.0 * max(1.0, limit / 32.0))
    seen = {round(point.open): (point.per_s, point.latency_s) for point in watch.curve.values()}
    for limit, per_s, latency_s in ((8, 8.0, 1.0), (16, 16.0, 1.0), (32, 32.0, 1.0), (64, 32.0, 2.0)):
        assert seen[limit][0] == pytest.approx(per_s, rel=0.2)
        assert seen[limit][1] == pytest.approx(latency_s, rel=0.1)
    for limit in range(1, 400):
        server.limit = float(limit)
        server.run(2.0)
    assert len(watch.curve) == MOST_POINTS
    assert min(point.open for point in watch.curve.values()) > 8


def test_a_cohort_with_a_pause_within_says_nothing_of_the_throughput(watch: LatencyWatch) -> None:
    cohort(watch, 0.0, [1.0] * SIZE)
    assert watch.curve == {}
    cohort(watch, 1.2, [1.0] * SIZE)
    (point,) = watch.curve.values()
    per_s = point.per_s
    cohort(watch, 60.0, [1.0] * SIZE)
    assert point.per_s == per_s


def test_a_cut_is_undone_where_the_model_itself_became_slower() -> None:
    server = Server(watch := LatencyWatch(), knee=1e9, limit=40.0)
    server.run(20.0)
    server.run(60.0, full_speed_s=3.0)
    assert server.limits[1:] == [pytest.approx(20.0, abs=5.0), 40.0]
    assert (server.limit, watch.knee) == (40.0, None)
    assert watch.base == pytest.approx(3.0, rel=0.01)


def test_a_lucky_first_cohort_costs_one_cut_that_is_undone() -> None:
    server = Server(LatencyWatch(), knee=1e9, limit=40.0)
    server.run(0.4, full_speed_s=0.4)
    server.run(100.0)
    assert server.limits[2:] == [40.0] and server.limit == 40.0


def test_a_cohort_of_which_most_was_refused_says_nothing(watch: LatencyWatch) -> None:
    clock = itertools.count(0.0, 1.0)
    feed(watch, clock, 1.0, 6)
    assert feed(watch, clock, 9.0, 3, refused=18) == []
    assert watch.short == pytest.approx(1.0)


def cohort(
    watch: LatencyWatch,
    at: float,
    latencies: list[float],
    size: int = SIZE,
    rtt_s: float = 1.0,
    *,
    at_cap: bool = False,
) -> list[float]:
    """`size` calls sent a hundredth of a second apart, of which these come back; what each asks for."""
    instants = [at + 0.01 * number for number in range(size)]
    for instant in instants:
        watch.sent(instant, LIMIT)
    events = [done("x", sent_at + s, sent_at, open_before=39) for sent_at, s in zip(instants, latencies, strict=False)]
    answers = [watch.observe(event, limit=LIMIT, rtt_s=rtt_s, tolerance=2.0, at_cap=at_cap) for event in events]
    return [limit for limit in answers if limit is not None]


def warm(watch: LatencyWatch) -> None:
    for at in (0.0, 10.0, 20.0):
        cohort(watch, at, [1.0] * SIZE)


def test_a_median_is_known_once_half_of_a_cohort_is_back(watch: LatencyWatch) -> None:
    cohort(watch, 0.0, [1.0] * 12)
    assert watch.short is None
    cohort(watch, 10.0, [*[1.0] * 7, *[2.0] * 5, 7.0, 8.0])
    assert watch.short == pytest.approx(7.0), "half of them took less, whatever the others take"


@pytest.mark.parametrize("apart_s", [0.0, 0.05, 0.5])
def test_the_median_is_that_of_all_calls_and_not_of_those_that_are_back(watch: LatencyWatch, apart_s: float) -> None:
    """Of calls that are sent one after the other, the first ones are back first, whether they are quick or slow."""
    chance, medians = random.Random(1), []
    for _ in range(400):
        calls = Cohort(0.0, end=0.0)
        sent = [apart_s * number for number in range(SIZE)]
        for at in sent:
            calls.add(at, LIMIT)
        median = None
        for at, back in sorted(((at, at + chance.lognormvariate(2.3, 0.77)) for at in sent), key=lambda call: call[1]):
            calls.close(done("x", back, at, open_before=39))
            median = median or calls.median_at(back)
        assert median is not None
        medians.append(median)
    assert sum(map(math.log, medians)) / len(medians) == pytest.approx(2.3, abs=0.08)


def test_outcomes_that_are_lost_leave_the_median_where_it_was(watch: LatencyWatch) -> None:
    """One in five never comes: such a call counts as a long one."""
    for at in range(0, 2000, 10):
        instants = [at + 0.01 * number for number in range(SIZE)]
        for instant in instants:
            watch.sent(instant, LIMIT)
        for number, instant in enumerate(instants):
            if number % 5:
                latency = 1.0 + 0.1 * (number % 7)
                watch.observe(
                    done("x", instant + latency, instant, open_before=39), limit=LIMIT, rtt_s=1.0, tolerance=2.0
                )
    assert watch.short == pytest.approx(1.3, abs=0.15)
    assert len(watch.cohorts) <= 1


def test_a_clock_that_goes_back_a_little_leaves_no_call_awaited() -> None:
    calls, instants = Cohort(0.0), [1.0, 1.2, 1.0, 1.1, 1.1]
    for at in instants:
        calls.add(at, LIMIT)
    for at in instants:
        calls.close(done("x", at + 1.0, at, open_before=39))
    assert calls.awaited == [] and calls.size == 5


def test_answers_within_the_same_millisecond_have_a_latency(watch: LatencyWatch) -> None:
    for at in (0.0, 10.0, 20.0, 30.0, 40.0):
        cohort(watch, at, [0.0] * SIZE)
    assert watch.short == watch.base == pytest.approx(1e-3, rel=0.01)


@pytest.mark.parametrize("cap", [8, 32, 100])
def test_a_cap_is_hardly_ever_left_for_the_latency_of_calls_that_vary(cap: int) -> None:
    cuts, kept_s = 0, 0.0
    for seed in range(8):
        chance, watch, limit, now = random.Random(seed), LatencyWatch(), float(cap), 0.0
        calls: list[tuple[float, float]] = []
        while now < 3000.0:
            while len(calls) < int(limit):
                watch.sent(now, limit)
                heapq.heappush(calls, (now + chance.lognormvariate(2.4, 0.77), now))
            before = now
            now, at = heapq.heappop(calls)
            kept_s += (now - before) * limit / cap
            asked = watch.observe(
                done("x", now, at, open_before=int(limit) - 1), limit=limit, rtt_s=14.0, tolerance=2.0
            )
            if asked is not None:
                cuts, limit = cuts + (asked < limit), asked
            elif watch.knee is not None and not watch.hot:
                limit = min(float(cap), max(limit, watch.knee))
    assert kept_s >= 0.97 * 8 * 3000.0, f"{cuts} cuts"


def test_the_average_of_medians_moves_by_two_fifths(watch: LatencyWatch) -> None:
    warm(watch)
    cohort(watch, 30.0, [1.5] * SIZE)
    assert watch.short == pytest.approx(1.2)
    assert watch.base == pytest.approx(1.0, rel=0.01)
    assert not watch.hot
    cohort(watch, 40.0, [3.0] * SIZE)
    assert watch.short == pytest.approx(1.92) and watch.hot


@pytest.mark.parametrize("latency, want", [(3.4, []), (3.6, [pytest.approx(LIMIT * 1.2 * 1.001 / 2.04)])])
def test_the_limit_is_cut_towards_a_latency_above_twice_the_least(
    watch: LatencyWatch, latency: float, want: list[float]
) -> None:
    warm(watch)
    assert cohort(watch, 30.0, [latency] * SIZE) == want


def test_a_cut_leaves_a_fifth_at_least(watch: LatencyWatch) -> None:
    warm(watch)
    assert cohort(watch, 30.0, [90.0] * SIZE) == [LIMIT / 5.0]


@pytest.mark.parametrize("open_before, cut", [(28, False), (29, True)])
def test_only_a_limit_in_use_is_cut(watch: LatencyWatch, open_before: int, cut: bool) -> None:
    warm(watch)
    for number in range(SIZE):
        watch.sent(30.0 + 0.01 * number, LIMIT)
    asked = None
    for number in range(SIZE):
        event = done("x", 39.0 + 0.01 * number, 30.0 + 0.01 * number, open_before=open_before)
        asked = watch.observe(event, limit=LIMIT, rtt_s=1.0, tolerance=2.0) or asked
    assert (asked is not None) is cut


@pytest.mark.parametrize("refused, known", [(12, True), (13, False)])
def test_the_median_of_a_few_is_chance(watch: LatencyWatch, refused: int, known: bool) -> None:
    feed(watch, itertools.count(0.0, 1.0), 1.0, 1, refused=refused)
    assert (watch.short is not None) is known


def test_after_an_outage_nothing_of_before_compares(watch: LatencyWatch) -> None:
    warm(watch)
    cohort(watch, 30.0, [10.0] * SIZE)
    watch.forget()
    assert (len(watch.cohorts), watch.short, watch.trial, watch.hot) == (0, None, None, False)
    assert watch.base is not None


@pytest.mark.parametrize("limit, want", [(1.0, None), (1.5, 1.0), (40.0, 11.44)])
def test_one_call_is_left(watch: LatencyWatch, limit: float, want: float | None) -> None:
    warm(watch)
    instants = [30.0 + 0.01 * number for number in range(SIZE)]
    for at in instants:
        watch.sent(at, limit)
    events = [done("x", at + 9.0, at, open_before=39) for at in instants]
    asked = [watch.observe(event, limit=limit, rtt_s=1.0, tolerance=2.0) for event in events]
    asked_first = next((answer for answer in asked if answer is not None), None)
    assert asked_first == (None if want is None else pytest.approx(want))


def test_the_median_is_kept_below_the_target_and_near_it() -> None:
    server = Server(watch := LatencyWatch(), knee=8.0, limit=20.0)
    watch.target.aim(2.0)
    latencies = []
    for _ in range(300):
        server.run(10.0)
        latencies.append(max(1.0, server.limit / server.knee))
    assert 1.6 < sorted(latencies[100:])[100] <= 2.0
    assert sum(latency > 2.0 for latency in latencies[100:]) < 0.1 * 200


def looked(
    watch: LatencyWatch, latency_s: float, *, at: float, limit: float = 40.0, opened: int = 40, answers: int = LOOK
) -> float | None:
    """Answers that come at once, with one latency; what the target makes of the last of them."""
    asked = None
    for _ in range(answers):
        event = done("x", at, at - latency_s, open_before=opened - 1)
        asked = watch.target.meet(event, limit, rtt_s=1.0) or asked
    return asked


@pytest.mark.parametrize(
    ("latency_s", "limit", "opened", "most"),
    [
        (2.0, 40.0, 40, None),
        (2.5, 40.0, 40, 40.0 * 0.9 * 2.0 / 2.5),
        (2.5, 40.0, 10, 10.0 * 0.9 * 2.0 / 2.5),
        (2.5, 5.0, 40, 5.0 * 0.9 * 2.0 / 2.5),
        (9.0, 40.0, 40, 20.0),
        (9.0, 1.5, 40, 1.0),
        (9.0, 1.0, 40, None),
    ],
)
def test_above_the_target_the_open_calls_are_cut_in_proportion_and_one_is_left(
    watch: LatencyWatch, latency_s: float, limit: float, opened: int, most: float | None
) -> None:
    watch.target.aim(2.0)
    asked = looked(watch, latency_s, at=10.0, limit=limit, opened=opened)
    assert asked == (None if most is None else pytest.approx(most))
    assert watch.target.most == asked


@pytest.mark.parametrize(("slow", "cut"), [(15, False), (16, True)])
def test_of_a_few_answers_clearly_more_than_half_have_to_be_slow(watch: LatencyWatch, slow: int, cut: bool) -> None:
    watch.target.aim(2.0)
    looked(watch, 3.0, at=10.0, answers=slow)
    asked = looked(watch, 1.0, at=10.0, answers=LOOK - slow)
    assert (asked is not None) is cut


def test_of_many_answers_half_are_enough(watch: LatencyWatch) -> None:
    watch.target.aim(2.0)
    for at in range(10, 18):
        looked(watch, 1.0, at=float(at), answers=12)
        assert (looked(watch, 3.0, at=float(at), answers=12) is not None) is (at == 13)
        if watch.target.most is not None:
            break
    else:
        pytest.fail("it was never cut")


def test_what_comes_back_soon_after_a_cut_says_nothing_of_it(watch: LatencyWatch) -> None:
    watch.target.aim(2.0)
    most = looked(watch, 4.0, at=10.0)
    assert looked(watch, 4.0, at=12.4) is None and watch.target.most == most
    assert looked(watch, 4.0, at=12.6) is not None


def test_refusals_say_nothing_and_failures_later_than_the_target_have_missed_it(watch: LatencyWatch) -> None:
    watch.target.aim(2.0)
    for status, took_s, missed in ((429, 9.0, False), (500, 1.0, False), (500, 9.0, True), (0, 9.0, True)):
        before = len(watch.target.latencies)
        watch.target.meet(done("x", 20.0, 20.0 - took_s, status), 40.0, rtt_s=1.0)
        assert len(watch.target.latencies) == before + missed


def test_more_calls_are_tried_after_a_calm_look_or_four_below_the_target(watch: LatencyWatch) -> None:
    watch.target.aim(2.0)
    looked(watch, 4.0, at=0.0)
    looked(watch, 1.5, at=10.0, limit=20.0)
    assert watch.target.most == pytest.approx(20.0 * 0.9 * 2.0 / 1.5)
    before, looks = watch.target.most, 0
    while watch.target.most == before:
        looks += 1
        looked(watch, 1.9, at=10.0 + 10.0 * looks, limit=before)
    assert looks == 4
    assert watch.target.most == pytest.approx(before * 1.05 + 1.0)


def test_a_rise_that_misses_the_target_makes_the_next_one_wait_twice_as_long(watch: LatencyWatch) -> None:
    watch.target.aim(2.0)
    looked(watch, 4.0, at=0.0)
    now, waits = 0.0, []
    for _ in range(4):
        most, looks = watch.target.most, 0
        while watch.target.most == most:
            now, looks = now + 10.0, looks + 1
            looked(watch, 1.8, at=now, limit=most or 0.0)
        waits.append(looks)
        now += 10.0
        looked(watch, 3.0, at=now, limit=watch.target.most or 0.0)
    assert waits == [4, 8, 16, 32]
    now += 10.0
    looked(watch, 3.0, at=now, limit=watch.target.most or 0.0)
    assert watch.target.wait == 4, "without a rise something else has changed"


def test_a_limit_that_something_else_bounds_is_not_raised(watch: LatencyWatch) -> None:
    watch.target.aim(2.0)
    most = looked(watch, 4.0, at=0.0)
    for number in range(1, 20):
        looked(watch, 1.0, at=10.0 * number, limit=8.0, opened=8)
    assert watch.target.most == most


def test_a_cut_for_the_target_ends_the_trial_of_another_one(watch: LatencyWatch) -> None:
    warm(watch)
    assert cohort(watch, 30.0, [9.0] * SIZE) == [pytest.approx(11.44)]
    assert watch.trial is not None
    watch.target.aim(2.0)
    asked = cohort(watch, 60.0, [9.0] * SIZE)
    assert (asked, watch.trial, watch.knee) == ([20.0], None, None)


def test_without_a_target_nothing_is_left_of_an_earlier_one(watch: LatencyWatch) -> None:
    watch.target.aim(2.0)
    looked(watch, 4.0, at=0.0)
    watch.target.aim(3.0)
    assert watch.most(100.0) == 20.0
    watch.target.aim(None)
    assert watch.most(100.0) == 100.0
    assert looked(watch, 9.0, at=100.0) is None


def test_a_probe_below_the_knee_is_seen_to_cost_answers_although_the_limit_has_risen_before() -> None:
    """The throughput was counted while the limit rose to where it is; a cut by a third looks like a smaller loss."""
    server = Server(watch := LatencyWatch(), knee=40.0, limit=20.0)
    server.run(10.0)
    watch.knee, watch.probe_in = 20.0, 5  # as a lucky cut may have it
    while watch.trial is None:
        server.run(1.0)
    assert watch.trial.flow_before == pytest.approx(int(watch.trial.before), rel=0.02)
    before = watch.trial.before
    while watch.trial is not None:
        server.run(1.0)
    assert server.limit >= before, "the probe cost answers, and is undone"


def _probed_in_vain() -> Server:
    """A server of which a probe has shown that fewer than about 40 calls cost answers."""
    server = Server(watch := LatencyWatch(), knee=40.0, limit=20.0)
    server.run(10.0)
    watch.knee, server.limit = 40.0, 40.0
    while not watch.needed:
        server.run(1.0)
    return server


def test_probes_go_no_lower_than_what_a_former_one_has_shown_to_be_needed() -> None:
    server = _probed_in_vain()
    needed, server.limits = server.watch.needed, []
    assert 0.65 * 40.0 < needed < server.limit
    server.run(60.0)
    assert len(server.limits) > 4, "there were probes"
    assert min(server.limits) >= needed - 1e-6


def test_what_was_needed_is_tried_anew_after_long() -> None:
    server = _probed_in_vain()
    needed = server.watch.needed
    server.limits = []
    server.run(300.0)
    assert min(server.limits) < 0.99 * needed


def test_after_an_outage_nothing_is_known_to_be_needed() -> None:
    """Slow start would wait for calm answers of a server that came back slower, and could not find out why."""
    watch = _probed_in_vain().watch
    watch.forget()
    assert (watch.enough, watch.needed) == (0.0, 0.0)


def test_a_server_that_has_lost_most_of_its_speed_is_followed_below_what_was_needed() -> None:
    server = _probed_in_vain()
    server.knee = 12.0
    server.run(60.0)
    assert server.limit < 26.0


@pytest.mark.parametrize("seed, times, sigma", [(9, 2.0, 0.3), (19, 2.15, 0.6), (15, 2.5, 0.3), (22, 2.5, 0.3)])
def test_a_model_that_becomes_slower_keeps_its_limit(seed: int, times: float, sigma: float) -> None:
    """While it gets slower, few answers come. Going by them alone, a cut seems to have cost nothing in these runs."""
    chance, watch, limit, now = random.Random(seed), LatencyWatch(), 100.0, 0.0
    calls: list[tuple[float, float]] = []
    limits = [limit]
    while now < 600.0:
        while len(calls) < int(limit):
            watch.sent(now, limit)
            latency = (times if now > 200.0 else 1.0) * chance.lognormvariate(2.0, sigma)
            heapq.heappush(calls, (now + latency, now))
        now, at = heapq.heappop(calls)
        asked = watch.observe(done("x", now, at, open_before=int(limit) - 1), limit=limit, rtt_s=15.0, tolerance=2.0)
        if asked is not None:
            limits.append(limit := asked)
    assert len(limits) == 3 and limits[0] == limits[2] == 100.0, "it was cut once, to find out"


def test_slow_start_that_waits_for_calm_answers_finds_out_whether_they_queue() -> None:
    """The first answers may have been quick by luck, or the calls after them may wait: a lower limit tells."""
    for knee, rises in ((1e9, True), (25.0, False)):
        server = Server(watch := LatencyWatch(), knee=knee, limit=40.0)
        watch.base, watch.short, watch.medians = 1.0 if rises else 1.1, 1.5, 3
        while len(server.limits) == 1 or watch.trial is not None:
            server.run(1.5, 1.5 if rises else 1.0, is_waiting=len(server.limits) == 1)
        assert server.limits[1:] == [pytest.approx(0.65 * 40.0), 40.0][: 2 if rises else 1]
        assert (watch.knee is None) is rises


def queue_up(watch: LatencyWatch, slots: int, limit: float) -> float | None:
    """Send a cohort at once to a server of so many slots, 3 s a call; return the first limit that the watch asks for,
    while the limit has risen to `limit`."""
    instants = [0.001 * number for number in range(SIZE)]
    for at in instants:
        watch.sent(at, float(SIZE))
    for number, at in enumerate(instants):
        event = done(f"{number}", at + 3.0 * (number // slots + 1), at, 200, open_before=number)
        wanted = watch.observe(event, limit=limit, rtt_s=6.0, tolerance=2.0, is_waiting=True)
        if wanted is not None:
            return wanted
    return None


@pytest.mark.parametrize("limit", [24.0, 45.0])
def test_a_queue_of_the_first_calls_is_cut_at_once(watch: LatencyWatch, limit: float) -> None:
    """Their median takes 12 s; the first third of those that are back by then took 3, but for one that took 6."""
    assert queue_up(watch, 4, limit) == pytest.approx(24.0 * 1.2 * 3.6 / 12.0)
    assert watch.base == pytest.approx(3.6)


def test_first_calls_that_find_free_slots_show_no_queue(watch: LatencyWatch) -> None:
    assert queue_up(watch, SIZE, 45.0) is None
    assert watch.base == pytest.approx(3.0)


def test_after_a_queue_of_the_first_calls_the_base_is_not_measured_anew_soon(watch: LatencyWatch) -> None:
    limit = queue_up(watch, 4, 24.0)
    assert limit is not None and watch.trial is not None
    for cohort in range(3):
        for number in range(SIZE):
            at = 60.0 + 20.0 * cohort + 0.75 * number
            watch.sent(at, limit)
            watch.observe(done("x", at + 5.0, at, 200, open_before=6), limit=limit, rtt_s=5.0, tolerance=2.0)
    assert not watch.queued
    assert watch.probe_after == 12


def test_latencies_that_vary_by_chance_show_no_queue() -> None:
    rng = random.Random(1)
    first = [[(number, rng.lognormvariate(0.0, 0.6)) for number in range(SIZE)] for _ in range(1000)]
    assert sum(unqueued_latency(calls) is not None for calls in first) <= 3


def test_the_first_calls_are_compared_when_most_of_those_that_found_few_open_are_back() -> None:
    """The quick ones are back first: their mean was taken for a base of half the true one, and the limit kept low."""
    queued = [(number, 3.0 * (number // 4 + 1)) for number in range(16)]
    assert unqueued_latency(queued) == pytest.approx(3.6)
    assert unqueued_latency(queued[1:]) is not None
    assert unqueued_latency([call for call in queued if call[0] not in (1, 3)]) is None


def test_a_limit_that_rises_to_the_knee_is_not_probed(watch: LatencyWatch) -> None:
    """After an outage the limit begins at one call. A probe on the way up took that for the knee."""
    clock = itertools.count(0.0, 1.0 / LIMIT)
    feed(watch, clock, 1.0, 3)
    watch.knee, watch.probe_in = 2.0 * LIMIT, 0
    assert feed(watch, clock, 1.0, 3) == []
    watch.knee = LIMIT
    assert feed(watch, clock, 1.0, 3)[0] == pytest.approx(0.65 * LIMIT)


def test_the_first_calls_are_looked_at_in_two_cohorts_and_then_forgotten(watch: LatencyWatch) -> None:
    clock = itertools.count(0.0, 1.0)
    feed(watch, clock, 1.0, 1)
    assert len(watch.early) > 0
    feed(watch, clock, 1.0, 1)
    assert watch.early == []
    feed(watch, clock, 1.0, 1)
    assert watch.early == []


def test_at_a_cap_only_much_slower_answers_mean_a_knee_and_one_is_forgotten(watch: LatencyWatch) -> None:
    for at in (0.0, 10.0, 20.0):
        assert cohort(watch, at, [1.0] * SIZE, at_cap=True) == []
    assert cohort(watch, 30.0, [4.0] * SIZE, at_cap=True) == [], "on average, 2.2 times the base"
    assert cohort(watch, 40.0, [5.0] * SIZE, at_cap=True) != [], "on average, 3.3 times"
    watch.forget()
    watch.knee, watch.base = 30.0, 1.0
    cohort(watch, 60.0, [1.0] * SIZE, at_cap=False)
    assert watch.knee is not None
    cohort(watch, 70.0, [1.0] * SIZE, at_cap=True)
    assert watch.knee is None
