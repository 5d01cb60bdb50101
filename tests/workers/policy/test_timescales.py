"""The two time scales: how long silence has to be before it is an answer."""

from __future__ import annotations

import pytest

from dicast.workers.policy.adaptive_state import AdaptiveConfig, Timescales
from tests.workers.policy.build import done

CONFIG = AdaptiveConfig()


def timescales_after(answers: list[float], refusals: list[float]) -> Timescales:
    timescales = Timescales(CONFIG.feedback_first_s, CONFIG.rtt_first_s, CONFIG.feedback_first_s)
    for latency in answers:
        timescales.record_answer(CONFIG, done("a", 100.0 + latency, 100.0))
    for latency in refusals:
        timescales.record_refusal(CONFIG, done("r", 100.0 + latency, 100.0, 429))
    return timescales


@pytest.mark.parametrize(
    ("answers", "refusals", "want"),
    [
        ([], [], 0.8),
        ([4.0] * 5, [], 0.8),
        ([0.25] * 5, [], 0.15),  # a refusal comes back sooner than the quickest answers
        ([0.01] * 5, [], 0.1),
        ([4.0] * 5, [0.02], 0.5),
        ([4.0] * 5, [0.6], 0.78),
        ([0.25] * 5, [0.02], 0.15),
        ([0.25] * 5, [0.4], 0.52),  # unless it was seen to take longer
        ([4.0] * 5, [60.0], 15.0),
        ([4.0] * 5, [60.0, *[0.5] * 8], 0.65),
    ],
)
def test_the_feedback_delay(answers: list[float], refusals: list[float], want: float) -> None:
    assert timescales_after(answers, refusals).feedback_s == pytest.approx(want)


def test_slow_answers_do_not_hide_the_quick_ones() -> None:
    timescales = timescales_after([0.3, 2.0, 0.3, 2.0, 0.3, 2.0] * 5, [])
    assert 0.3 <= timescales.quick_s < 0.6
    assert timescales.rtt_s > 0.6


def test_a_call_is_under_way_for_no_longer_than_half_of_a_refusal_takes() -> None:
    timescales, config = Timescales(0.8, 5.0, 0.8), AdaptiveConfig()
    assert timescales.way_s == 0.0
    for latency_s, way_s in [(0.16, 0.08), (0.1, 0.05), (0.4, 0.05)]:
        timescales.record_refusal(config, done("c", latency_s, 0.0, 429))
        assert timescales.way_s == pytest.approx(way_s)


def test_the_first_answer_is_the_average_and_later_ones_move_it() -> None:
    assert timescales_after([4.0], []).rtt_s == 4.0
    assert timescales_after([4.0, 8.0], []).rtt_s == pytest.approx(4.0 + 4.0 * CONFIG.rtt_weight)
    assert timescales_after([0.0], []).rtt_s == 1e-3
