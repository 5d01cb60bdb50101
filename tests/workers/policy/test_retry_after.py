from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicast.workers.policy.headers import LONGEST_S, Wait, read_limits, retry_after


def retry_after_s(headers, now_s):
    wait = retry_after(headers, now_s)
    return None if wait is None else wait.seconds


NOW = datetime(2015, 10, 21, 7, 27, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    "value, expected",
    [
        ("5", 5),
        ("0", 0),
        ("1.5", 1.5),
        (".5", 0.5),
        (" 12 ", 12),
        ("+5", 5),
        ("1e2", 100),
        ("-3", 0),
        ("-0", 0),
        ("1e9", LONGEST_S),
        ("1e400", LONGEST_S),
        ("9" * 150, LONGEST_S),
        ("5, 7", 7),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 60),
        ("Wed, 21 Oct 2015 07:28:00", 60),  # no zone: UTC
        ("Wed, 21 Oct 2015 07:28:00 -0000", 60),
        ("Wed, 21 Oct 2015 09:28:00 +0200", 60),
        ("Wednesday, 21-Oct-15 07:28:00 GMT", 60),  # RFC 850
        ("Wed Oct 21 07:28:00 2015", 60),  # asctime
        ("Wed, 21 Oct 2015 07:20:00 GMT", 0),
        ("Wed, 21 Oct 2015 07:27:60 GMT", 59),  # a leap second
        ("2015-10-21T07:28:00Z", 60),  # RFC 3339
        ("5, Wed, 21 Oct 2015 07:28:00 GMT", 60),
        ("90, Wed, 21 Oct 2015 07:28:00 GMT", 90),
        ("Fri, 31 Dec 9999 23:59:59 GMT", LONGEST_S),
        ("", None),
        ("soon", None),
        ("NaN", None),
        ("inf", None),
        ("-Infinity", None),
        ("1_0", None),
        ("0x10", None),
        ("٣", None),
        ("5 apples", None),
        ("Wed, 99 Oct 2015 07:28:00 GMT", None),
        ("Wed, 21 Oct 99999 07:28:00 GMT", None),
        ("Wed, 21 Oct 2015 99:28:00 GMT", None),
        ("9" * 5000, LONGEST_S),
    ],
)
def test_one_header(value, expected):
    assert retry_after_s([("Retry-After", value)], NOW) == expected


@pytest.mark.parametrize(
    "headers, expected",
    [
        ([], None),
        ([("x-retry-after", "5")], None),
        ([("retry-after", "3"), ("RETRY-AFTER", "7"), ("retry-after", "soon")], 7),
        ([("retry-after-ms", "1500"), ("retry-after", "2")], 1.5),
        ([("retry-after-ms", "soon"), ("retry-after", "2")], 2),
        ([("retry-after-ms", "-1")], 0),
        ([("retry-after-ms", "Wed, 21 Oct 2015 07:28:00 GMT")], None),
        ([("retry-after", "1"), ("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT")], 60),
    ],
)
def test_several_headers(headers, expected):
    assert retry_after_s(headers, NOW) == expected


@given(st.lists(st.tuples(st.sampled_from(["retry-after", "retry-after-ms", "date"]), st.text())), st.floats(0, 1e10))
def test_whatever_comes_the_result_is_finite_and_not_negative(headers, now):
    found = retry_after_s(headers, now)
    assert found is None or (0 <= found <= LONGEST_S and math.isfinite(found))


@given(st.text(alphabet="0123456789eE+-. ,:GMTWedOct\t", max_size=40))
def test_near_misses_never_raise(value):
    retry_after_s([("retry-after", value)], NOW)


@given(st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)), st.integers(0, 4_000_000_000))
def test_any_date_is_the_time_until_then(when, now):
    when = when.replace(microsecond=0)
    expected = min(max(0.0, when.timestamp() - now), LONGEST_S)
    assert retry_after_s([("retry-after", format_datetime(when, usegmt=True))], now) == expected


@given(st.floats(0, LONGEST_S))
def test_any_number_of_seconds(seconds):
    assert retry_after_s([("retry-after", repr(seconds))], NOW) == seconds


@pytest.mark.parametrize("off_s", [0, 3600, -3600])
def test_a_date_is_one_of_the_servers_clock(off_s):
    """Ours may be hours off: what is asked for is the time between two instants of the same clock."""
    headers = [("Retry-After", "Wed, 21 Oct 2015 07:28:30 GMT"), ("Date", "Wed, 21 Oct 2015 07:28:00 GMT")]
    now = 1445412480.0 + off_s
    assert retry_after_s(headers, now) == retry_after_s(reversed(headers), now) == 30
    assert retry_after_s([("retry-after", "5"), headers[1]], now) == 5
    assert retry_after_s([headers[0], ("date", "today")], 1445412480.0) == 30


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after-ms": "1500"}, Wait(1.5, 0.001)),
        ({"retry-after": "3"}, Wait(3, 1)),
        ({"retry-after": "3.25"}, Wait(3.25, 0.01)),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, Wait(60, 1)),
        ({"retry-after": "-3"}, Wait(0, 1)),
        ({"retry-after": "soon"}, None),
    ],
)
def test_a_call_and_the_governor_read_the_same(headers, expected):
    assert retry_after(headers.items(), NOW) == expected
    told = read_limits(headers, NOW)
    assert (told.retry_after_s, told.retry_grain_s) == (expected or (None, 0.0))
