"""When the units that wait are the last ones."""

from __future__ import annotations

from dicast.workers.admission.queue_end import LONGEST_S, QueueEnd


def test_three_rounds_of_the_limit_are_the_end():
    assert not QueueEnd().is_near(120, 40, 0.0)
    assert QueueEnd().is_near(119, 40, 0.0)
    assert not QueueEnd().is_near(0, 40, 0.0), "nothing waits"
    assert not QueueEnd().is_near(5, 0, 0.0), "the limit is not known"


def test_a_queue_that_stays_short_is_none_that_ends():
    end = QueueEnd()
    assert end.is_near(50, 40, 10.0)
    assert end.is_near(90, 40, 10.0 + 0.9 * LONGEST_S)
    assert not end.is_near(50, 40, 10.0 + LONGEST_S)
    assert not end.is_near(50, 40, 100.0)


def test_each_queue_has_an_end_of_its_own():
    for pause in (0, 500):
        end = QueueEnd()
        assert end.is_near(50, 40, 10.0)
        assert not end.is_near(pause, 40, 13.0)
        assert end.is_near(50, 40, 20.0)
