"""A window of which only refusals tell, and a pool that sends whatever it is allowed to."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from dicast.workers.policy.adaptive_state import AdaptiveState
from dicast.workers.policy.budgets import HiddenWindow
from dicast.workers.policy.calls import CallLog, LoggedCall
from lab.simulation.adapter import Adapter
from lab.simulation.client import Ceiling
from tests.workers.policy.build import done, sent

ANSWER_S, REFUSAL_S = 1.0, 0.1


def accepted_and_refused(
    limit: int,
    period_s: float,
    over_s: float,
    until: float,
    *,
    named: bool = True,
    whole_s: bool = False,
    model: str = "",
    lifted_at: float = math.inf,
) -> tuple[Counter[int], int]:
    """Calls accepted in each window, and the refused ones; so much of the first window is over at the start. Refusals
    name its end, if it is `named`, or the next whole second after it. With whole seconds there are more calls: up to
    100 open ones of two seconds, and 40 a second. From `lifted_at` on all are accepted."""
    adapter, accepted, refused = Adapter(Ceiling(100 if whole_s else 20), 1), Counter[int](), 0
    ticks, answer_s = (40, 2.0 * ANSWER_S) if whole_s else (20, ANSWER_S)
    coming: list[tuple[float, float, int]] = []
    for tick in range(int(until * ticks)):
        now = tick / ticks
        while coming and coming[0][0] <= now:
            at, sent_at, status = heapq.heappop(coming)
            window = math.floor((sent_at + over_s) / period_s)
            end_s = (window + 1) * period_s - over_s - at
            ends = {"retry-after": str(math.ceil(end_s))} if whole_s else {"retry-after-ms": f"{1000 * end_s:.0f}"}
            headers = ends if named and status == 429 else {}
            adapter.on_response(at, status, at - sent_at, headers, (10.0, 10.0), project="p", key=sent_at)
        if adapter.on_admit_request(now, 10.0, project="p", model=model) is True:
            window = math.floor((now + over_s) / period_s)
            passes = accepted[window] < limit or now >= lifted_at
            accepted[window] += passes
            refused += not passes
            heapq.heappush(coming, (now + (answer_s if passes else REFUSAL_S), now, 200 if passes else 429))
    return accepted, refused


@pytest.mark.parametrize(
    ("limit", "period_s", "over_s"),
    [(200, 60.0, 19.0), (200, 60.0, 40.0), (90, 60.0, 5.0), (400, 120.0, 70.0), (300, 120.0, 20.0), (70, 10.0, 4.0)],
)
def test_its_size_and_its_end_are_learned(limit: int, period_s: float, over_s: float) -> None:
    windows = 8
    accepted, refused = accepted_and_refused(limit, period_s, over_s, windows * period_s - over_s)
    assert min(accepted[number] for number in range(4, windows)) >= 0.99 * limit
    assert refused <= max(3 * 9, 0.05 * sum(accepted.values())), "a short window's size takes three bursts"


@pytest.mark.parametrize(("limit", "over_s"), [(200, 19.0), (200, 40.0), (90, 5.0), (400, 30.0), (900, 0.0)])
def test_a_minute_of_which_nothing_tells_is_learned_from_its_end(limit: int, over_s: float) -> None:
    windows = 8
    accepted, refused = accepted_and_refused(limit, 60.0, over_s, windows * 60.0 - over_s, named=False)
    assert min(accepted[number] for number in range(4, windows)) >= 0.95 * limit
    assert refused <= max(50, 0.03 * sum(accepted.values()))


def test_a_learned_minute_refuses_no_more_calls() -> None:
    _, first = accepted_and_refused(200, 60.0, 19.0, 4 * 60.0 - 19.0, named=False)
    _, all_eight = accepted_and_refused(200, 60.0, 19.0, 8 * 60.0 - 19.0, named=False)
    assert first <= 25 and all_eight == first


def served(adapter: Adapter, until: float, ticks: int, serve: Callable[[float], tuple[int, float]]) -> Iterator[int]:
    """Send whatever the governor allows, and yield the status of each call; `serve` tells it and the time it takes."""
    coming: list[tuple[float, float, int]] = []
    for tick in range(int(ticks * until)):
        now = tick / ticks
        while coming and coming[0][0] <= now:
            at, sent_at, status = heapq.heappop(coming)
            adapter.on_response(at, status, at - sent_at, {}, (10.0, 10.0), project="p", key=sent_at)
        while adapter.on_admit_request(now, 10.0, project="p") is True:
            status, lasts_s = serve(now)
            heapq.heappush(coming, (now + lasts_s, now, status))
            yield status


def takes_s(chance: random.Random, *, passes: bool) -> float:
    """Some two seconds of an answer, or a fifth of one of a refusal."""
    return 2.0 * math.exp(chance.gauss(0.0, 0.4)) if passes else chance.uniform(0.1, 0.3)


@pytest.mark.parametrize("status", [500, 503, 529, 0])
def test_a_server_that_is_down_for_a_while_has_no_window(status: int) -> None:
    adapter = Adapter(Ceiling(20), 1)

    def serve(now: float) -> tuple[int, float]:
        return (status, REFUSAL_S) if 30.0 <= now < 50.0 else (200, ANSWER_S)

    assert {200, status} == set(served(adapter, 120.0, 20, serve))
    engine = adapter.governor.state.engine
    assert isinstance(engine, AdaptiveState)
    assert engine.told.hidden.budget is None and engine.told.hidden.drought_ended_at < 0.0


def test_a_call_that_fails_begins_no_window() -> None:
    """It may never have arrived: only an answer ends a drought."""
    window, log = HiddenWindow(), CallLog()
    for number in range(12):
        log.sent(sent(f"c{number}", 10.0 + number))
        trial = log.record_outcome(done(f"c{number}", 10.2 + number, 10.0 + number, 429 if number < 11 else 500))
        window.note(trial, trial.was_refused, "", 0.0)
        if trial.was_refused:
            window.note_unexplained(trial, log)
    assert window.drought is not None and window.drought.refusals == window.drought.alone == 11


def refused_in_the_first_minute(seed: int) -> int:
    """Calls refused until the end of a minute of 150 calls that began 23 s ago, with up to 40 open."""
    chance, accepted = random.Random(seed), 0

    def serve(now: float) -> tuple[int, float]:
        nonlocal accepted
        passes = accepted < 150
        accepted += passes
        return 200 if passes else 429, takes_s(chance, passes=passes)

    return list(served(Adapter(Ceiling(40), 1), 37.0, 40, serve)).count(429)


def test_the_end_of_a_window_is_asked_for_by_single_calls_although_it_looks_like_a_cap() -> None:
    assert sum(refused_in_the_first_minute(seed) for seed in range(6)) / 6 <= 20


def unreported_bucket(seed: int) -> tuple[int, int, bool]:
    """Calls accepted and refused in 300 s by a bucket of fifty calls and five a second; whether noise was proven."""
    chance, adapter, level, filled_at = random.Random(seed), Adapter(Ceiling(100), 1), 50.0, 0.0

    def serve(now: float) -> tuple[int, float]:
        nonlocal level, filled_at
        level, filled_at = min(50.0, level + 5.0 * (now - filled_at)), now
        passes = level >= 1.0
        level -= passes
        return 200 if passes else 429, takes_s(chance, passes=passes)

    statuses, noisy = Counter[int](), False
    for status in served(adapter, 300.0, 20, serve):
        statuses[status] += 1
        engine = adapter.governor.state.engine
        assert isinstance(engine, AdaptiveState)
        noisy = noisy or engine.noise.share > 0.0
    return statuses[200], statuses[429], noisy


def test_a_bucket_of_which_nothing_tells_is_seldom_taken_for_noise() -> None:
    runs = [unreported_bucket(seed) for seed in range(6)]
    assert sum(noisy for _, _, noisy in runs) <= 1
    assert min(accepted for accepted, _, _ in runs) >= 0.99 * (50 + 5 * 300)
    assert sum(refused for _, refused, _ in runs) <= 0.06 * sum(accepted for accepted, _, _ in runs)


def test_a_window_that_one_drought_suggests_is_used_up_by_a_refusal_alone() -> None:
    """Else nothing would be sent until its end, and nothing would ever disprove it."""
    window, log, rooms = HiddenWindow(), CallLog(), []
    for number in range(400):
        at = float(number)
        log.sent(sent(f"c{number}", at))
        trial = log.record_outcome(done(f"c{number}", at + 0.2, at, 429 if 60 <= number < 80 else 200))
        window.note(trial, trial.was_refused, "", 0.0)
        if trial.was_refused:
            window.note_unexplained(trial, log)
        else:
            window.note_answer(trial)
        if window.budget is not None:
            rooms.append(window.budget.level)
    assert len(rooms) == 320 and min(rooms) >= 1.0


def test_a_shorter_window_that_repeats_is_known_after_its_second_end() -> None:
    accepted, refused = accepted_and_refused(100, 10.0, 1.0, 79.0, whole_s=True)
    assert refused <= 10
    assert min(accepted[number] for number in range(8)) == 100


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


def under_a_cap_of_eight(retry_after_s: int, model: str = "") -> tuple[int, int]:
    """The calls answered in two minutes, and those refused: all beyond eight open ones, to come back after so long."""
    adapter, accepted, answered, refused = Adapter(Ceiling(60), 1), 0, 0, 0
    coming: list[tuple[float, float, int]] = []
    for tick in range(2400):
        now = tick / 20.0
        while coming and coming[0][0] <= now:
            at, sent_at, status = heapq.heappop(coming)
            answered += status == 200
            headers = {"retry-after": str(retry_after_s)} if status == 429 else {}
            adapter.on_response(at, status, at - sent_at, headers, (10.0, 10.0), project="p", key=sent_at)
        while adapter.on_admit_request(now, 10.0, project="p", model=model) is True:
            passes = accepted - answered < 8
            accepted += passes
            refused += not passes
            heapq.heappush(coming, (now + (ANSWER_S if passes else REFUSAL_S), now, 200 if passes else 429))
    return answered, refused


def test_a_constant_retry_after_names_no_window() -> None:
    """The burst that is refused agrees on an end, and the first call after it names another: it is a cap after all."""
    answered, refused = under_a_cap_of_eight(60)
    assert answered >= 0.85 * 8 * 120.0 / ANSWER_S
    assert refused < 20


def named(*ends: float) -> HiddenWindow:
    """One whose refusals named these ends, in whole seconds."""
    window = HiddenWindow()
    for end in ends:
        window.hint(LoggedCall("c", 1, 0.0, 0), 0.0, end, 1.0)
    return window


def test_a_period_is_shorter_if_three_named_ends_lie_it_apart() -> None:
    assert named(7.0, 7.5, 17.2, 27.0)._shorter_period_s(1.0, 60.0) == 10.0
    assert named(7.0, 7.5, 17.2)._shorter_period_s(1.0, 60.0) == 0.0


def test_a_period_that_nobody_expects_takes_four_named_ends() -> None:
    assert named(7.0, 22.2, 37.0)._shorter_period_s(1.0, 60.0) == 0.0
    assert named(7.0, 22.2, 37.0, 52.3)._shorter_period_s(1.0, 60.0) == 15.0
    assert named(7.0, 22.2, 37.0, 55.3)._shorter_period_s(1.0, 60.0) == 0.0
    assert named(*(7.0 + 15.0 * number for number in range(9)))._shorter_period_s(1.0, 15.0) == 0.0
    assert named(7.0, 22.2, 37.0, 52.3)._shorter_period_s(1.0, 60.0, left_s=59.0) == 0.0


@pytest.mark.parametrize("model", ["", "m"])
@pytest.mark.parametrize(("seconds", "most_refused"), [(2, 30), (3, 30), (10, 20)])
def test_a_short_constant_retry_after_names_no_window_either(seconds: int, most_refused: int, model: str) -> None:
    """One that is over before a later call could name another end was taken for a window of a minute; and all the
    longer where calls name their model, as they do."""
    answered, refused = under_a_cap_of_eight(seconds, model)
    assert answered >= 0.9 * 8 * 120.0 / ANSWER_S
    assert refused < most_refused


@pytest.mark.parametrize("named", [True, False])
def test_calls_that_name_their_model_fare_alike(named: bool) -> None:
    runs = [accepted_and_refused(200, 60.0, 19.0, 401.0, named=named, model=model) for model in ("", "m")]
    assert runs[0] == runs[1]


def test_a_window_that_is_enforced_no_more_holds_back_nothing_soon() -> None:
    """Its size was to double before it was dropped, and grew with what was accepted: it was never dropped."""
    accepted, _ = accepted_and_refused(200, 60.0, 0.0, 600.0, lifted_at=240.0)
    assert min(accepted[number] for number in range(8, 10)) >= 0.95 * 60.0 * 20
