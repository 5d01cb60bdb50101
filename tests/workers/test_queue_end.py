"""When the units that wait are the last ones."""

from __future__ import annotations

from dicast.workers.admission.gate import LONGEST_S, QueueEnd


def test_three_rounds_of_the_limit_are_the_end():
    assert not QueueEnd().is_near(120, 40, 0.0)
    assert QueueEnd().is_near(119, 40, 0.0)
    assert not QueueEnd().is_near(5, 0, 0.0), "the limit is not known"


def test_a_queue_that_stays_short_is_none_that_ends():
    end = QueueEnd()
    assert end.is_near(50, 40, 10.0)
    assert end.is_near(90, 40, 10.0 + 0.9 * LONGEST_S)
    assert not end.is_near(50, 40, 10.0 + LONGEST_S)
    assert not end.is_near(50, 40, 100.0)


def test_each_long_queue_has_an_end_of_its_own():
    end = QueueEnd()
    assert end.is_near(50, 40, 10.0)
    assert not end.is_near(500, 40, 13.0)
    assert end.is_near(50, 40, 20.0)


def test_many_small_jobs_are_no_end_each():
    end = QueueEnd()
    near = [end.is_near(waiting, 40, 3.0 * job) for job in range(5) for waiting in (100, 1, 0)]
    assert near == [True] * 3 + [False] * 12
