"""Noise: a test with slow traffic tells it from a limit, and what it explains is forgiven."""

from __future__ import annotations

import pytest

from dicast.workers.policy.calls import LoggedCall
from dicast.workers.policy.noise import FORGIVEN_AT_ONCE, PATIENCE_CALLS, TEST_RTTS, WATCHED_CALLS, Noise

RTT_S = 1.0


def refused(number: int) -> LoggedCall:
    return LoggedCall(f"c{number}", number, float(number), 0, refused_at=number + 0.1)


def suspected(every: int) -> tuple[Noise, int]:
    """A rate is new, and each `every`th call is refused until that is suspect; the number of the last call."""
    noise, number = Noise(), 0
    noise.rate_kept(0)
    while noise.test is None and number < WATCHED_CALLS:
        number += every
        noise.suspects(number, 10.0, 0.0)
    return noise, number


def known(every: int) -> tuple[Noise, int]:
    """As `suspected`, and it goes on when the traffic is slow."""
    noise, number = suspected(every)
    while not noise.share:
        assert noise.test is not None
        number += every
        noise.proves(noise.test, refused(number), number, 0.0, RTT_S)
    return noise, number


@pytest.mark.parametrize(("every", "suspect"), [(1, False), (4, True), (10, True), (30, False)])
def test_a_share_that_neither_few_nor_a_limit_explains_is_suspect(every: int, suspect: bool) -> None:
    noise, _ = suspected(every)
    assert (noise.test is not None) is suspect


@pytest.mark.parametrize("every", [4, 6, 10])
def test_the_same_share_of_slow_traffic_is_noise(every: int) -> None:
    noise, _ = known(every)
    assert noise.share == pytest.approx(1.0 / every, rel=0.4)
    assert noise.test is None


@pytest.mark.parametrize("every", [4, 6, 10])
def test_slow_traffic_that_is_not_refused_shows_a_limit_and_the_next_test_waits(every: int) -> None:
    noise, number = suspected(every)
    test = noise.test
    assert test is not None
    assert not noise.disproved(test, number + 5, 1.0, RTT_S)
    shown = next(n for n in range(number, number + 200) if noise.disproved(test, n, 1.0, RTT_S))
    assert noise.test is None
    for last in range(shown + 1, shown + PATIENCE_CALLS, 10):
        assert not noise.suspects(last, 10.0, 1.0)


def test_a_test_that_shows_nothing_in_time_is_given_up() -> None:
    noise, number = suspected(10)
    test = noise.test
    assert test is not None
    assert not noise.disproved(test, number + 5, TEST_RTTS * RTT_S - 0.1, RTT_S)
    assert noise.disproved(test, number + 5, TEST_RTTS * RTT_S, RTT_S)


def test_slow_traffic_that_is_mostly_refused_shows_a_lower_limit() -> None:
    noise, number = suspected(10)
    test = noise.test
    assert test is not None
    assert not any(noise.proves(test, refused(n), n, 0.0, RTT_S) for n in range(number + 1, number + 11))
    assert noise.disproved(test, number + 10, 1.0, RTT_S)


def test_known_noise_is_forgiven_and_what_comes_on_top_is_not() -> None:
    noise, number = known(10)
    assert all(noise.forgives(refused(n), 1.0) for n in range(number + 10, number + 500, 10))
    at_once = [noise.forgives(refused(number + 500), 1.0) for _ in range(20)]
    assert sum(at_once) <= FORGIVEN_AT_ONCE + 1
    assert not at_once[-1]


def test_a_finding_is_trusted_for_a_while_and_longer_when_it_comes_again() -> None:
    noise, number = known(10)
    first = noise.until
    assert noise.forgives(refused(number), first)
    assert not noise.forgives(refused(number + 1), first + 0.1)
    assert noise.share == 0.0
    assert noise.trust_rtts == 2.0 * first / RTT_S


def test_nothing_is_forgiven_where_nothing_is_known() -> None:
    assert not Noise().forgives(refused(1), 0.0)
