"""Durations and instants as people write them."""

from datetime import UTC, datetime, timedelta

import pytest

from dicast.app.domain.deadlines import Bounds, finish_by, instant_ms, seconds
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
