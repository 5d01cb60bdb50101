"""Durations and instants as people write them, and whether a batch ends in time."""

import math
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from dicast.app.domain.deadlines import (
    LOOK_S,
    NO_HURRY,
    ONLINE_MARGIN,
    Bounds,
    Outlook,
    finish_by,
    instant_ms,
    online_time,
    seconds,
    usual_turnaround,
)
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.refusals import InvalidJob, validated
from tests.ledger.bench import a_job


@pytest.mark.parametrize(
    "given, wanted",
    [(0, 0.0), (90, 90.0), (1.5, 1.5), ("90s", 90.0), ("10m", 600.0), ("10min", 600.0), ("1h30m", 5400.0),
     ("2d", 172_800.0), ("0.5h", 1800.0), (timedelta(minutes=2), 120.0)],
)  # fmt: skip
def test_durations(given, wanted):
    assert seconds(given) == wanted


@pytest.mark.parametrize(
    "given", [-1, "", "10", "1h 30", "1y", "-5s", True, None, 1e12, float("nan"), "9" * 50 + "s", []]
)
def test_what_is_no_duration(given):
    with pytest.raises(ValueError, match="must be a duration of at most a year"):
        seconds(given)


@pytest.mark.parametrize(
    "given, wanted",
    [
        ("2030-06-01T18:00:00Z", "2030-06-01T18:00:00.000Z"),
        ("2030-06-01T20:00:00.25+02:00", "2030-06-01T18:00:00.250Z"),
        ("2030-06-01 18:00Z", "2030-06-01T18:00:00.000Z"),
        (datetime(2030, 6, 1, 18, tzinfo=UTC), "2030-06-01T18:00:00.000Z"),
        ("10m", 600.0),
        (5, 5.0),
    ],
)
def test_a_job_finishes_by_an_instant_or_after_a_duration(given, wanted):
    assert finish_by(given) == wanted == finish_by(wanted)


@pytest.mark.parametrize(
    "given, why",
    [("2030-06-01T18:00:00", "time zone"), ("2030-13-01T18:00:00Z", "an instant like"), (0, "longer than 0"),
     ("tomorrow", "a duration")],
)  # fmt: skip
def test_what_is_neither(given, why):
    with pytest.raises(ValueError, match=why):
        finish_by(given)


def test_a_job_says_them_in_its_own_words_and_keeps_them():
    job = a_job(finish_by="2030-06-01T20:00:00+02:00", unit_deadline="90s", max_pool_down=0)
    assert (job.finish_by, job.unit_deadline, job.max_pool_down) == ("2030-06-01T18:00:00.000Z", 90.0, 0.0)
    assert EvaluationJob.model_validate_json(job.model_dump_json()) == job
    with pytest.raises(InvalidJob, match=r"max_pool_down: must be a duration of at most a year, .*got 'soon'"):
        validated({**job.model_dump(mode="json"), "max_pool_down": "soon"})


def test_bounds_in_ms():
    assert Bounds.from_options(unit_deadline_s=0.0, finish_by=None, max_pool_down_s=0.0) == Bounds()
    assert Bounds.from_options(unit_deadline_s=1.5, finish_by=60.0, max_pool_down_s=20.0) == Bounds(
        1500, 60_000, None, 20_000
    )
    instant = "2030-06-01T18:00:00.250Z"
    by = Bounds.from_options(unit_deadline_s=0.0, finish_by=instant, max_pool_down_s=0.0)
    assert by == Bounds(finish_at_ms=instant_ms(instant)) and by.finish_at_ms == 1_906_567_200_250


# ---------------------------------------------------------------------- batches or online
def test_a_batch_is_reckoned_with_by_the_slowest_of_the_last_ones_and_at_most_as_promised():
    assert usual_turnaround([], 86_400.0) == 86_400.0
    assert usual_turnaround([600.0, 1200.0, 300.0], 86_400.0) == 2400.0
    assert usual_turnaround([80_000.0], 86_400.0) == 86_400.0


def test_online_calls_take_as_long_as_their_rounds():
    assert [online_time(calls, at_once=5, call_s=2.0) for calls in (0, 1, 5, 6)] == [0.0, 2.0, 2.0, 4.0]


SECONDS = st.floats(0.0, 1e6)


@drawn(SECONDS, SECONDS, SECONDS, SECONDS)
def test_a_batch_that_begins_has_time_to_be_left(left, turnaround, online, cancelling):
    outlook = Outlook(left, turnaround, online, cancelling)
    assert outlook.leaves_in_s >= 0.0
    assert outlook.leaves_batch == (left <= outlook.reserve_s)
    if outlook.fits_batch:
        assert outlook.leaves_in_s >= turnaround - 1e-6, "as long as it usually takes"
        assert left - outlook.leaves_in_s >= cancelling + LOOK_S + ONLINE_MARGIN * online - 1e-6
    if left > 0:
        earlier = outlook._replace(left_s=left / 2)
        assert not (earlier.fits_batch and not outlook.fits_batch), "less time never makes room for a batch"


def test_without_a_deadline_there_is_always_time():
    assert NO_HURRY.fits_batch and not NO_HURRY.leaves_batch and NO_HURRY.leaves_in_s == math.inf


def a_simulated_job(chance):
    """How long a job of the road `auto` took, how long online calls alone would have taken, and what it had: seconds.
    Batches take what they like, fail in part, and end late when cancelled; online calls take up to twice as long as
    reckoned."""
    calls, at_once, call_s = chance.randint(1, 5000), chance.randint(1, 200), chance.uniform(0.5, 60.0)
    slow, promised_s, cancelling_s = chance.uniform(1.0, ONLINE_MARGIN), 86_400.0, chance.choice([0.0, 60.0, 600.0])
    typical_s = chance.choice([60.0, 1800.0, 20_000.0])
    alone_s = slow * online_time(calls, at_once=at_once, call_s=call_s)
    bound_s = alone_s + chance.choice([0.0, 60.0, 3600.0, 100_000.0]) * chance.random()
    now, seen, batches = 0.0, [typical_s * chance.lognormvariate(0, 1) for _ in range(chance.randint(0, 3))], 0
    while calls:
        online_s = online_time(calls, at_once=at_once, call_s=call_s)
        outlook = Outlook(bound_s - now, usual_turnaround(seen, promised_s), online_s, cancelling_s)
        if not outlook.fits_batch:
            return now + slow * online_s, alone_s, bound_s, batches
        batches, takes_s = batches + 1, typical_s * chance.lognormvariate(0, 1.5)
        if takes_s + LOOK_S * chance.random() <= outlook.leaves_in_s:
            now, calls = now + takes_s + LOOK_S * chance.random(), chance.randint(0, calls // 5)
            seen.append(takes_s)
            continue
        made = min(1.0, outlook.leaves_in_s / takes_s) * chance.random()
        now += outlook.leaves_in_s + LOOK_S * chance.random() + cancelling_s * chance.random()
        calls -= int(made * calls)
        return now + slow * online_time(calls, at_once=at_once, call_s=call_s), alone_s, bound_s, batches
    return now, alone_s, bound_s, batches


def test_of_200_simulated_jobs_none_is_late_where_online_calls_could_still_make_it():
    jobs = [a_simulated_job(Random(seed)) for seed in range(200)]
    assert [(took, bound) for took, alone, bound, _ in jobs if took > bound and alone <= bound] == []
    assert 20 < sum(batches > 0 for *_, batches in jobs) < 180, "both roads were taken"
