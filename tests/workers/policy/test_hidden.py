"""A window of which only refusals tell, and a pool that sends whatever it is allowed to."""

from __future__ import annotations

import heapq
import math
from collections import Counter

import pytest

from dicast.workers.policy.budgets import HiddenWindow, Hint
from lab.simulation.adapter import Adapter
from lab.simulation.client import Ceiling

ANSWER_S, REFUSAL_S = 1.0, 0.1


def accepted_and_refused(
    limit: int, period_s: float, over_s: float, until: float, *, named: bool = True
) -> tuple[Counter[int], int]:
    """Calls accepted in each window, and the refused ones; so much of the first window is over at the start. Refusals
    name its end, if it is `named`."""
    adapter, accepted, refused = Adapter(Ceiling(20), 1), Counter[int](), 0
    coming: list[tuple[float, float, int]] = []
    for tick in range(int(until * 20)):
        now = tick / 20.0
        while coming and coming[0][0] <= now:
            at, sent_at, status = heapq.heappop(coming)
            window = math.floor((sent_at + over_s) / period_s)
            end_s = (window + 1) * period_s - over_s - at
            headers = {"retry-after-ms": f"{1000 * end_s:.0f}"} if named and status == 429 else {}
            adapter.on_response(at, status, at - sent_at, headers, (10.0, 10.0), project="p", key=sent_at)
        if adapter.on_admit_request(now, 10.0, project="p") is True:
            window = math.floor((now + over_s) / period_s)
            passes = accepted[window] < limit
            accepted[window] += passes
            refused += not passes
            heapq.heappush(coming, (now + (ANSWER_S if passes else REFUSAL_S), now, 200 if passes else 429))
    return accepted, refused


@pytest.mark.parametrize(
    ("limit", "period_s", "over_s"),
    [(200, 60.0, 19.0), (200, 60.0, 40.0), (90, 60.0, 5.0), (400, 120.0, 70.0), (300, 120.0, 20.0), (70, 10.0, 4.0)],
)
def test_its_size_and_its_end_are_learned(limit: int, period_s: float, over_s: float) -> None:
    windows = 8
    accepted, refused = accepted_and_refused(limit, period_s, over_s, windows * period_s - over_s)
    assert min(accepted[number] for number in range(4, windows)) >= 0.99 * limit
    assert refused <= 0.05 * sum(accepted.values())


@pytest.mark.parametrize(("limit", "over_s"), [(200, 19.0), (200, 40.0), (90, 5.0), (400, 30.0), (900, 0.0)])
def test_a_minute_of_which_nothing_tells_is_learned_from_its_end(limit: int, over_s: float) -> None:
    windows = 8
    accepted, refused = accepted_and_refused(limit, 60.0, over_s, windows * 60.0 - over_s, named=False)
    assert min(accepted[number] for number in range(4, windows)) >= 0.95 * limit
    assert refused <= max(50, 0.03 * sum(accepted.values()))


def test_a_longer_window_of_which_nothing_tells_is_learned_too() -> None:
    windows = 10
    accepted, refused = accepted_and_refused(600, 300.0, 120.0, windows * 300.0 - 120.0, named=False)
    assert min(accepted[number] for number in range(4, windows)) >= 0.95 * 600
    assert refused <= 0.03 * sum(accepted.values())


def test_a_short_window_of_which_nothing_tells_is_used_all_the_same() -> None:
    windows = 12
    accepted, _ = accepted_and_refused(20, 10.0, 4.0, windows * 10.0 - 4.0, named=False)
    assert sum(accepted[number] for number in range(6, windows)) >= 0.9 * 6 * 20


def test_a_server_that_refuses_all_for_a_while_has_no_window() -> None:
    """For 12 s of 50, every call is refused; nothing else bounds the calls but their number."""
    adapter, open_calls, answered = Adapter(Ceiling(20), 1), 0, Counter[int]()
    coming: list[tuple[float, float, int]] = []
    for tick in range(20 * 600):
        now = tick / 20.0
        while coming and coming[0][0] <= now:
            at, sent_at, status = heapq.heappop(coming)
            open_calls -= status == 200
            answered[int(at / 50.0)] += status == 200
            adapter.on_response(at, status, at - sent_at, {}, (10.0, 10.0), project="p", key=sent_at)
        while adapter.on_admit_request(now, 10.0, project="p") is True:
            passes = now % 50.0 < 38.0 and open_calls < 10
            open_calls += passes
            heapq.heappush(coming, (now + (ANSWER_S if passes else REFUSAL_S), now, 200 if passes else 429))
    assert min(answered[number] for number in range(4, 12)) >= 0.6 * 38.0 * 10.0 / ANSWER_S


def test_a_constant_retry_after_names_no_window() -> None:
    """Of calls beyond eight open ones, all are told to come back a minute later, whatever is true."""
    adapter, accepted, answered = Adapter(Ceiling(60), 1), 0, 0
    coming: list[tuple[float, float, int]] = []
    for tick in range(2400):
        now = tick / 20.0
        while coming and coming[0][0] <= now:
            at, sent_at, status = heapq.heappop(coming)
            answered += status == 200
            headers = {"retry-after": "60"} if status == 429 else {}
            adapter.on_response(at, status, at - sent_at, headers, (10.0, 10.0), project="p", key=sent_at)
        while adapter.on_admit_request(now, 10.0, project="p") is True:
            passes = accepted - answered < 8
            accepted += passes
            heapq.heappush(coming, (now + (ANSWER_S if passes else REFUSAL_S), now, 200 if passes else 429))
    assert answered >= 0.85 * 8 * 120.0 / ANSWER_S


def test_a_period_is_shorter_if_three_named_ends_lie_it_apart() -> None:
    window = HiddenWindow(hints=[Hint(0.0, until, 1.0) for until in (7.0, 7.5, 17.2, 27.0)])
    assert window._shorter_period_s(1.0, 60.0) == 10.0
    window.hints.pop()
    assert window._shorter_period_s(1.0, 60.0) == 0.0
